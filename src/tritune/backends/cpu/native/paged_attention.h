// paged_attention: attention over the cache. See ops/paged_attention.py.
#pragma once

#include "pool.h"

namespace tritune {

Index paged_attention_scratch_bytes(const Pool& pool, Index rows, Index heads, Index kv_heads, Index head_dim,
                                    Index max_context);

// caches [blocks, kv_heads, block_size, head_dim], f16 if half; block_tables [sequences, max_blocks]
void paged_attention(Pool& pool, const float* q, const std::uint8_t* k_cache, const std::uint8_t* v_cache, bool half,
                     const std::int32_t* positions, const std::int32_t* sequence, const std::int32_t* block_tables,
                     float* o, Index rows, Index heads, Index kv_heads, Index head_dim, Index block_size,
                     Index max_blocks, float* scratch);

}  // namespace tritune
