#include "rope.h"

#include <cstring>

#include "rows_kernels.h"

namespace tritune {

void rope(Pool& pool, float* qkv, const float* table, const std::int32_t* positions, float sign, Index rows, Index table_rows,
          Index heads, Index kv_heads, Index head_dim) {
    const RowKernels& kernels = row_kernels(pool.isa());
    const Index half = head_dim / 2, stride = (heads + 2 * kv_heads) * head_dim;
    pool.parallel(rows, [&](Index begin, Index end) {
        for (Index t = begin; t < end; ++t) {
            const Index position = positions[t];
            if (position < 0 || position >= table_rows) continue;
            const float* cosine = table + position * head_dim;
            for (Index head = 0; head < heads + kv_heads; ++head) {
                float* x = qkv + t * stride + head * head_dim;
                kernels.rotate(x, x + half, cosine, cosine + half, sign, x, x + half, half);
            }
        }
    });
}

void rope_cache(Pool& pool, const float* qkv, const float* table, const std::int32_t* positions, const std::int32_t* sequence,
                const std::int32_t* block_tables, float* q, std::uint8_t* k_cache, std::uint8_t* v_cache, int format,
                float* scratch, Index rows, Index table_rows, Index heads, Index kv_heads, Index head_dim, Index sequences,
                Index max_blocks, Index blocks, Index block_size) {
    const RowKernels& kernels = row_kernels(pool.isa());
    const Index half = head_dim / 2, stride = (heads + 2 * kv_heads) * head_dim;
    const Index row_bytes = head_dim * (format == kF32 ? 4 : 2);
    pool.parallel(rows, [&](Index begin, Index end, int share) {
        float* turned = scratch + share * head_dim;
        for (Index t = begin; t < end; ++t) {
            const float* x = qkv + t * stride;
            const Index position = positions[t];
            if (position < 0 || position >= table_rows) {
                std::memcpy(q + t * heads * head_dim, x, static_cast<std::size_t>(heads * head_dim) * sizeof(float));
                continue;
            }
            const float* cosine = table + position * head_dim;
            for (Index head = 0; head < heads; ++head) {
                const float* from = x + head * head_dim;
                float* to = q + (t * heads + head) * head_dim;
                kernels.rotate(from, from + half, cosine, cosine + half, 1.0f, to, to + half, half);
            }
            const Index s = sequence[t], column = position / block_size;
            if (s < 0 || s >= sequences || column >= max_blocks) continue;
            const Index block = block_tables[s * max_blocks + column];
            if (block < 0 || block >= blocks) continue;
            for (Index head = 0; head < kv_heads; ++head) {
                const float* k = x + (heads + head) * head_dim;
                const float* v = x + (heads + kv_heads + head) * head_dim;
                const Index place = ((block * kv_heads + head) * block_size + position % block_size) * row_bytes;
                kernels.rotate(k, k + half, cosine, cosine + half, 1.0f, turned, turned + half, half);
                kernels.narrow(turned, format, k_cache + place, head_dim);
                kernels.narrow(v, format, v_cache + place, head_dim);
            }
        }
    });
}

}  // namespace tritune
