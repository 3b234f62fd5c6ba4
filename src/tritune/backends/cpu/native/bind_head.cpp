#include "cross_entropy.h"
#include "logits.h"
#include "tape.h"

namespace tritune {

void bind_head(nanobind::module_& module) {
    bind_op(module, "logits", &logits);
    bind_op(module, "logits_backward", &logits_backward);
    bind_op(module, "cross_entropy", &cross_entropy);
    module.def("logits_scratch_bytes", &logits_scratch_bytes);
    module.def("logits_backward_scratch_bytes", &logits_backward_scratch_bytes);
    module.def("cross_entropy_scratch_bytes", &cross_entropy_scratch_bytes);
}

}  // namespace tritune
