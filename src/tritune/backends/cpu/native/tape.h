// A recorded program: ops in order, run without going back to Python.
//
// An op is a plain function   void name(Pool&, pointers and sizes...)   and one line that binds it:
//
//     bind_op(module, "name", &name);
//
// which makes it `_native.name(tape, ...)` in Python: the call is appended to the tape. Pointers arrive as integers
// (buffer.address; 0 = not given), numbers and bools as they are. Ops do not throw and do not allocate: Python checks
// shapes and dtypes before, and gives scratch as one more pointer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "common.h"
#include "pool.h"

namespace tritune {

class Tape {
public:
    using Op = std::function<void(Pool&)>;

    void add(const char* name, Op op) { ops_.push_back({name, std::move(op)}); }
    void clear() { ops_.clear(); }
    std::size_t size() const { return ops_.size(); }
    void run(Pool& pool) const;
    // Runs once and adds the seconds of every op to the entry of its name.
    void profile(Pool& pool, std::vector<std::pair<std::string, double>>& seconds) const;

private:
    struct Entry {
        const char* name;
        Op op;
    };
    std::vector<Entry> ops_;
};

// How an argument travels from Python: a pointer as an integer, anything else as it is.
template <class T>
struct Wire {
    using type = T;
    static T value(type x) { return x; }
};
template <class T>
struct Wire<T*> {
    using type = std::uintptr_t;
    static T* value(type x) { return reinterpret_cast<T*>(x); }
};

template <class... Args>
void bind_op(nanobind::module_& module, const char* name, void (*op)(Pool&, Args...)) {
    module.def(name, [name, op](Tape& tape, typename Wire<Args>::type... args) {
        tape.add(name, [op, args...](Pool& pool) { op(pool, Wire<Args>::value(args)...); });
    });
}

}  // namespace tritune
