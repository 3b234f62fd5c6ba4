// add_loss, global_norm and adamw: the ends of a micro-batch and of an optimizer step. Columns of totals, settings and
// state: LOSS_TOTALS, OPTIMIZER_SETTINGS and OPTIMIZER_STATE of backends/base.py.
#pragma once

#include "pool.h"

namespace tritune {

inline constexpr Index kNormParts = 256;  // of the sum of squares: a fixed number, so threads do not change the result

void add_loss(Pool& pool, const float* nll, const float* coefficients, float* totals, Index count);

// parts: scratch [kNormParts].
void global_norm(Pool& pool, const float* grads, float* totals, const float* settings, float* state, double* parts, Index count);

void adamw(Pool& pool, float* parameters, float* grads, float* m, float* v, const float* settings, const float* state,
           Index count);

}  // namespace tritune
