#include "copy.h"
#include "tape.h"

namespace tritune {

void bind_rows(nanobind::module_& module) {
    bind_op(module, "copy", &copy);
    bind_op(module, "zero", &zero);
}

}  // namespace tritune
