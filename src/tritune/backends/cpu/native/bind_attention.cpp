#include "causal_attention.h"
#include "paged_attention.h"
#include "tape.h"

namespace tritune {

void bind_attention(nanobind::module_& module) {
    bind_op(module, "paged_attention", &paged_attention);
    bind_op(module, "causal_attention", &causal_attention);
    bind_op(module, "causal_attention_backward", &causal_attention_backward);
    module.def("paged_attention_scratch_bytes", &paged_attention_scratch_bytes);
    module.def("causal_attention_scratch_bytes", &causal_attention_scratch_bytes);
    module.def("causal_attention_backward_scratch_bytes", &causal_attention_backward_scratch_bytes);
}

}  // namespace tritune
