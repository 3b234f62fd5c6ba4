// causal_attention and causal_attention_backward: attention inside packed sequences. See ops/.
#pragma once

#include "pool.h"

namespace tritune {

Index causal_attention_scratch_bytes(const Pool& pool, Index heads, Index kv_heads, Index head_dim);
Index causal_attention_backward_scratch_bytes(const Pool& pool, Index rows, Index heads, Index kv_heads,
                                              Index head_dim);

void causal_attention(Pool& pool, const float* qkv, const std::int32_t* positions, float* o, float* lse, Index rows,
                      Index heads, Index kv_heads, Index head_dim, float* scratch);

// q_start [sequences + 1]
void causal_attention_backward(Pool& pool, const float* qkv, const float* o, const float* lse, const float* dout,
                               const std::int32_t* q_start, Index sequences, float* dqkv, float* delta, Index rows,
                               Index heads, Index kv_heads, Index head_dim, float* scratch);

}  // namespace tritune
