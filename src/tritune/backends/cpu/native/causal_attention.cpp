#include "causal_attention.h"

#include <cstring>

#include "attention_kernels.h"
#include "isa.h"

namespace tritune {

TRITUNE_KERNEL_TABLES(AttentionKernels, attention_kernels)

namespace {

AttentionShape shape_of(const Pool& pool, Index heads, Index kv_heads, Index head_dim) {
    return {heads, kv_heads, head_dim, round_up(head_dim, attention_kernels(pool.isa()).lane)};
}

constexpr Index kFloat = sizeof(float);

}  // namespace

Index causal_attention_scratch_bytes(const Pool& pool, Index heads, Index kv_heads, Index head_dim) {
    return pool.threads() * attention_scratch(shape_of(pool, heads, kv_heads, head_dim)) * kFloat;
}

Index causal_attention_backward_scratch_bytes(const Pool& pool, Index rows, Index heads, Index kv_heads,
                                              Index head_dim) {
    const AttentionShape shape = shape_of(pool, heads, kv_heads, head_dim);
    return (pool.threads() * attention_backward_scratch(shape) + 2 * heads * rows * shape.padded) * kFloat;
}

void causal_attention(Pool& pool, const float* qkv, const std::int32_t* positions, float* o, float* lse, Index rows,
                      Index heads, Index kv_heads, Index head_dim, float* scratch) {
    const AttentionKernels& kernels = attention_kernels(pool.isa());
    const AttentionShape shape = shape_of(pool, heads, kv_heads, head_dim);
    const Index stride = (heads + 2 * kv_heads) * head_dim, tile = shape.tile_rows(), tiles = ceil_div(rows, tile);
    // The last tiles see the most keys: they go first, so that no thread ends with a long one.
    pool.parallel_chunks(tiles * kv_heads, 1, [&](Index begin, Index end, int thread) {
        for (Index unit = begin; unit < end; ++unit) {
            const Index g = unit % kv_heads, first_row = (tiles - 1 - unit / kv_heads) * tile;
            const Index last_row = first_row + tile < rows ? first_row + tile : rows;
            for (Index row = first_row; row < last_row;) {
                float* const out = o + (row * heads + g * shape.group()) * head_dim;
                float* const sums = lse + row * heads + g * shape.group();
                if (positions[row] < 0) {
                    std::memset(out, 0, static_cast<std::size_t>(shape.group() * head_dim) * sizeof(float));
                    std::memset(sums, 0, static_cast<std::size_t>(shape.group()) * sizeof(float));
                    ++row;
                    continue;
                }
                const Index start = row - positions[row];  // the sequence's first row
                Index limits[kQueries], count = 0;
                while (row + count < last_row && positions[row + count] == positions[row] + count) {
                    limits[count] = positions[row] + count + 1;
                    ++count;
                }
                AttentionTask task{};
                task.q = qkv + row * stride + g * shape.group() * head_dim;
                task.q_stride = stride;
                task.limits = limits;
                task.rows = count;
                task.end_key = limits[count - 1];
                task.k = qkv + start * stride + (heads + g) * head_dim;
                task.v = qkv + start * stride + (heads + kv_heads + g) * head_dim;
                task.stride = stride;
                task.scratch = scratch + thread * attention_scratch(shape);
                task.o = out;
                task.o_stride = heads * head_dim;
                task.lse = sums;
                task.lse_stride = heads;
                kernels.attend[0](shape, task);
                row += count;
            }
        }
    });
}

void causal_attention_backward(Pool& pool, const float* qkv, const float* o, const float* lse, const float* dout,
                               const std::int32_t* q_start, Index sequences, float* dqkv, float* delta, Index rows,
                               Index heads, Index kv_heads, Index head_dim, float* scratch) {
    const AttentionKernels& kernels = attention_kernels(pool.isa());
    const AttentionShape shape = shape_of(pool, heads, kv_heads, head_dim);
    const Index stride = (heads + 2 * kv_heads) * head_dim, of_head = rows * shape.padded;
    float* const dk = scratch;  // [heads, rows, padded]: each head's share, so that heads can be computed side by side
    float* const dv = dk + heads * of_head;
    float* const own = dv + heads * of_head;
    pool.parallel_chunks(sequences * heads, 1, [&](Index begin, Index end, int thread) {
        for (Index unit = begin; unit < end; ++unit) {
            const Index head = unit % heads, sequence = unit / heads;
            const Index first = q_start[sequence], last = q_start[sequence + 1];
            if (last <= first) continue;
            kernels.backward(shape, {qkv, o, lse, dout, dqkv, delta, dk + head * of_head, dv + head * of_head, first,
                                     last, head, own + thread * attention_backward_scratch(shape)});
        }
    });
    const Index used = q_start[sequences];
    pool.parallel(
        rows,
        [&](Index begin, Index end) {
            for (Index row = begin; row < end; ++row) {
                float* target = dqkv + row * stride;
                if (row >= used) {
                    std::memset(target, 0, static_cast<std::size_t>(stride) * sizeof(float));
                    continue;
                }
                for (Index g = 0; g < kv_heads; ++g) {
                    const Index at = g * shape.group() * of_head + row * shape.padded;
                    kernels.add_rows(dk + at, of_head, shape.group(), head_dim, target + (heads + g) * head_dim);
                    kernels.add_rows(dv + at, of_head, shape.group(), head_dim,
                                     target + (heads + kv_heads + g) * head_dim);
                }
            }
        },
        16);
}

}  // namespace tritune
