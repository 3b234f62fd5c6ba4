// rope, rope_backward, rope_cache: rotary position embedding, and the keys and values of a row into the paged cache.
#pragma once

#include "pool.h"

namespace tritune {

// Turns the q and k heads of qkv [rows, (heads + 2 kv_heads) * head_dim] in place by table [table_rows, head_dim]; sign -1
// turns back. A row at a position outside of the table stays as it is.
void rope(Pool& pool, float* qkv, const float* table, const std::int32_t* positions, float sign, Index rows, Index table_rows,
          Index heads, Index kv_heads, Index head_dim);

// q [rows, heads * head_dim] = rotated q; rotated k and v into the caches [blocks, kv_heads, block_size, head_dim] (format
// of rows_kernels.h), position p of sequence s in block block_tables[s, p / block_size]. A row without a place in the
// cache writes none.
void rope_cache(Pool& pool, const float* qkv, const float* table, const std::int32_t* positions, const std::int32_t* sequence,
                const std::int32_t* block_tables, float* q, std::uint8_t* k_cache, std::uint8_t* v_cache, int format,
                float* scratch, Index rows, Index table_rows, Index heads, Index kv_heads, Index head_dim, Index sequences,
                Index max_blocks, Index blocks, Index block_size);

}  // namespace tritune
