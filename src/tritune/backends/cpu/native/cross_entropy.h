// cross_entropy: loss of each row and, in place, its gradient. See ops/cross_entropy.py.
#pragma once

#include "pool.h"

namespace tritune {

// Two floats for each piece of a row.
Index cross_entropy_scratch_bytes(Index rows, Index vocabulary);

void cross_entropy(Pool& pool, float* logits, const std::int32_t* targets, const float* coefficients, float* nll,
                   Index rows, Index vocabulary, bool backward, float* scratch);

}  // namespace tritune
