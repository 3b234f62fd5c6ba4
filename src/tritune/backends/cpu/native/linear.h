// linear and linear_backward: the ternary product, LoRA beside it, and their gradients (ops/linear.py).
#pragma once

#include "pool.h"

namespace tritune {

// `lines`, row_scale f32 [N rounded up to 16], part_starts i32 [parts + 1]: the packed matrix [N, K] (ternary.h).
// codes null: x itself is multiplied. rank 0: no LoRA, and the pointers after it are not read. half: a and b are f16.
// state null: no dropout. scratch: linear_scratch bytes, aligned to 64.
void linear(Pool& pool, const float* x, const std::int8_t* codes, const float* scales, const std::uint8_t* lines,
            const float* row_scale, const std::int32_t* part_starts, Index parts, Index tokens, Index rows,
            Index columns, float* y, bool accumulate, Index rank, bool half, const void* a, const void* b,
            const float* lora_scale, const std::int32_t* slot, const float* multiplier, float* down,
            const std::uint32_t* state, std::uint32_t module, std::uint32_t threshold, float keep,
            std::uint8_t* scratch);

// dx, grad_a and grad_b may be null: not wanted. down_grad f32 [T, parts * rank] is written.
void linear_backward(Pool& pool, const float* dy, const float* x, const std::uint8_t* lines, const float* row_scale,
                     const std::int32_t* part_starts, Index parts, Index tokens, Index rows, Index columns, float* dx,
                     Index rank, const float* a, const float* b, const float* lora_scale, const std::int32_t* slot,
                     const float* multiplier, const float* down, float* down_grad, float* grad_a, float* grad_b,
                     const std::uint32_t* state, std::uint32_t module, std::uint32_t threshold, float keep,
                     std::uint8_t* scratch);

// Bytes of scratch for a call of these sizes; width = parts * rank, 0 without LoRA.
Index linear_scratch(const Pool& pool, Index tokens, Index rows, Index columns, Index width, bool floats, bool dropout);
Index linear_backward_scratch(const Pool& pool, Index tokens, Index rows, Index columns, Index width);

}  // namespace tritune
