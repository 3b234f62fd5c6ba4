// The module tritune.backends.cpu._native: the pool, the tape, and the ops, which each room of ops binds itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "isa.h"
#include "pool.h"
#include "tape.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tritune {

void bind_rows(nb::module_& module);       // bind_rows.cpp: rows, optimizer, sampling
void bind_linear(nb::module_& module);     // bind_linear.cpp: ternary products and LoRA
void bind_head(nb::module_& module);       // bind_head.cpp: logits and loss
void bind_attention(nb::module_& module);  // bind_attention.cpp
void bind_replay(nb::module_& module);     // replay.cpp: not the CPU's, but native too

namespace {

Isa checked_isa(const std::string& name) {
    Isa isa;
    if (!isa_from_name(name, isa) || !isa_supported(isa)) throw nb::value_error("no such instruction set here");
    return isa;
}

// Runs tapes one after the other; no other thread of Python waits for it, and none may use the pool meanwhile.
void run(Pool& pool, const std::vector<Tape*>& tapes) {
    nb::gil_scoped_release released;
    const std::lock_guard<std::mutex> lock(pool.busy);
    for (const Tape* tape : tapes) tape->run(pool);
}

std::vector<std::pair<std::string, double>> profile(Pool& pool, const std::vector<Tape*>& tapes) {
    std::vector<std::pair<std::string, double>> seconds;
    nb::gil_scoped_release released;
    const std::lock_guard<std::mutex> lock(pool.busy);
    for (const Tape* tape : tapes) tape->profile(pool, seconds);
    return seconds;
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Kernels of tritune's CPU backend. The addresses given to ops are not checked: see ops_*.py.";
    nb::class_<Pool>(module, "Pool")
        .def("__init__", [](Pool* self, int threads, const std::string& isa) { new (self) Pool(threads, checked_isa(isa)); },
             "threads"_a, "isa"_a)
        .def_prop_ro("threads", &Pool::threads)
        .def_prop_ro("isa", [](const Pool& pool) { return std::string(isa_name(pool.isa())); });
    nb::class_<Tape>(module, "Tape").def(nb::init<>()).def("clear", &Tape::clear).def("__len__", &Tape::size);
    module.def("supported_isas", &supported_isas, "Instruction sets that this machine can run, best first.");
    module.def("run", &run, "pool"_a, "tapes"_a);
    module.def("profile", &profile, "pool"_a, "tapes"_a, "Run, and return (op, seconds) summed by op.");
    bind_rows(module);
    bind_linear(module);
    bind_head(module);
    bind_attention(module);
    bind_replay(module);
}

}  // namespace tritune
