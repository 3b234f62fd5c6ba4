// The row ops, the optimizer and the sampler.
#include "adamw.h"
#include "copy.h"
#include "embed.h"
#include "gather_rows.h"
#include "rms_norm_backward.h"
#include "rms_norm_quant.h"
#include "rope.h"
#include "sample.h"
#include "tape.h"

namespace tritune {

void bind_rows(nanobind::module_& module) {
    bind_op(module, "copy", &copy);
    bind_op(module, "zero", &zero);
    bind_op(module, "embed", &embed);
    bind_op(module, "rms_norm_quant", &rms_norm_quant);
    bind_op(module, "glu_norm_quant", &glu_norm_quant);
    bind_op(module, "rms_norm_backward", &rms_norm_backward);
    bind_op(module, "glu_backward", &glu_backward);
    bind_op(module, "rope", &rope);
    bind_op(module, "rope_cache", &rope_cache);
    bind_op(module, "gather_rows", &gather_rows);
    bind_op(module, "scatter_rows", &scatter_rows);
    bind_op(module, "next_rows", &next_rows);
    bind_op(module, "add_loss", &add_loss);
    bind_op(module, "global_norm", &global_norm);
    bind_op(module, "adamw", &adamw);
    bind_op(module, "sample", &sample);
}

}  // namespace tritune
