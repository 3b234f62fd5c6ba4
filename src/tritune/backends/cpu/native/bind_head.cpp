#include "cross_entropy.h"
#include "logits.h"
#include "measure.h"
#include "sampling_logits.h"
#include "tape.h"

namespace tritune {

void bind_head(nanobind::module_& module) {
    bind_op(module, "logits", &logits);
    bind_op(module, "logits_backward", &logits_backward);
    bind_op(module, "int8_logits", &int8_logits);
    bind_op(module, "int8_logits_backward", &int8_logits_backward);
    bind_op(module, "cross_entropy", &cross_entropy);
    bind_op(module, "make_rough", &make_rough);
    bind_op(module, "sampling_logits", &sampling_logits);
    // For benchmarks: see measure.h.
    module.def("measure_fma", &measure_fma);
    module.def("measure_dot", &measure_dot);
    module.def("measure_read", [](Pool& pool, std::uintptr_t address, Index count, double seconds) {
        return measure_read(pool, reinterpret_cast<const std::uint8_t*>(address), count, seconds);
    });
    module.def("rough_bytes", &rough_bytes);
    module.def("sampling_logits_scratch_bytes", &sampling_logits_scratch_bytes);
    module.def("logits_scratch_bytes", &logits_scratch_bytes);
    module.def("logits_backward_scratch_bytes", &logits_backward_scratch_bytes);
    module.def("cross_entropy_scratch_bytes", &cross_entropy_scratch_bytes);
}

}  // namespace tritune
