#include "linear.h"
#include "tape.h"
#include "ternary.h"

namespace tritune {

namespace {

// Runs now, not on a tape: matrices are packed once, when a model is loaded.
template <class From, class To>
void bind_now(nanobind::module_& module, const char* name, void (*function)(Pool&, From*, Index, Index, Index, To*)) {
    module.def(name, [function](Pool& pool, std::uintptr_t from, Index rows, Index columns, Index first_row,
                                std::uintptr_t to) {
        nanobind::gil_scoped_release released;
        const std::lock_guard<std::mutex> lock(pool.busy);
        function(pool, reinterpret_cast<From*>(from), rows, columns, first_row, reinterpret_cast<To*>(to));
    });
}

}  // namespace

void bind_linear(nanobind::module_& module) {
    module.def("ternary_bytes", &ternary_bytes);
    bind_now(module, "pack_ternary", &pack_ternary);
    bind_now(module, "unpack_ternary", &unpack_ternary);
    module.def("linear_scratch", &linear_scratch);
    module.def("linear_backward_scratch", &linear_backward_scratch);
    bind_op(module, "linear", &linear);
    bind_op(module, "linear_backward", &linear_backward);
}

}  // namespace tritune
