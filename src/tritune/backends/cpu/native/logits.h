// logits and logits_backward: products with a [V, D] table as stored. See ops/logits.py.
#pragma once

#include "pool.h"

namespace tritune {

// Bytes of scratch for either op.
Index logits_scratch_bytes(const Pool& pool, Index rows, Index columns);
Index logits_backward_scratch_bytes(const Pool& pool, Index rows);

// kind: 0 f32, 1 f16, 2 bf16 (raw bits).
void logits(Pool& pool, const float* x, const std::uint8_t* table, int kind, float* out, Index rows, Index columns,
            Index vocabulary, float* scratch);
void logits_backward(Pool& pool, const float* dlogits, const std::uint8_t* table, int kind, float* dx, Index rows,
                     Index columns, Index vocabulary, float* scratch);

// The same for int8 rows, row v of which stands for scales[v] times it.
void int8_logits(Pool& pool, const float* x, const std::int8_t* table, const float* scales, float* out, Index rows,
                 Index columns, Index vocabulary, float* scratch);
void int8_logits_backward(Pool& pool, const float* dlogits, const std::int8_t* table, const float* scales, float* dx,
                          Index rows, Index columns, Index vocabulary, float* scratch);

}  // namespace tritune
