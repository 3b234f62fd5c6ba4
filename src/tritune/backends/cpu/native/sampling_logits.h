// sampling_logits: logits for `sample`, exact where it can make a difference to what is drawn. See README.md, "The head".
#pragma once

#include "pool.h"

namespace tritune {

Index rough_bytes(Index columns);  // of a row's codes

// Rough rows of a table (kind: 0 f32, 1 f16, 2 bf16): codes [V, rough_bytes], scales, errors and norms [V].
void make_rough(Pool& pool, const std::uint8_t* table, int kind, std::uint8_t* codes, float* scales, float* errors,
                float* norms, Index columns, Index vocabulary);

Index sampling_logits_scratch_bytes(const Pool& pool, Index rows, Index columns, Index vocabulary);

// settings, state, seen, allowed (may be null): as `sample` has them. counts [2], may be null: += rows of x that were
// computed over rough rows, and how many stored rows were read for them.
void sampling_logits(Pool& pool, const float* x, const std::uint8_t* table, int kind, const std::uint8_t* codes,
                     const float* scales, const float* errors, const float* norms, float* out, const float* settings,
                     const std::uint32_t* state, const std::uint32_t* seen, const std::uint32_t* allowed, Index rows,
                     Index columns, Index vocabulary, Index words, float* scratch, std::int32_t* counts);

}  // namespace tritune
