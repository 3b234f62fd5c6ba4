#include "paged_attention.h"

#include <cstring>

#include "attention_kernels.h"

namespace tritune {

namespace {

// With few rows there are too few tiles for the threads: the keys are split as well, at multiples of this (whatever the
// number of threads), and the parts combined.
constexpr Index kSplitKeys = 128;
constexpr Index kFewRows = 16;
constexpr Index kFloat = sizeof(float);

AttentionShape shape_of(const Pool& pool, Index heads, Index kv_heads, Index head_dim) {
    return {heads, kv_heads, head_dim, round_up(head_dim, attention_kernels(pool.isa()).lane)};
}

// Rows first … of one sequence; their number is returned, 0 for a spare row.
Index rows_together(const std::int32_t* positions, const std::int32_t* sequence, Index first, Index end,
                    Index* limits) {
    Index count = 0;
    while (first + count < end && positions[first + count] >= 0 && sequence[first + count] == sequence[first]) {
        limits[count] = positions[first + count] + 1;
        ++count;
    }
    return count;
}

}  // namespace

Index paged_attention_scratch_bytes(const Pool& pool, Index rows, Index heads, Index kv_heads, Index head_dim,
                                    Index max_context) {
    const AttentionShape shape = shape_of(pool, heads, kv_heads, head_dim);
    const Index partial =
        rows > kFewRows ? 0 : ceil_div(max_context, kSplitKeys) * rows * heads * partial_floats(shape);
    return (pool.threads() * attention_scratch(shape) + partial) * kFloat;
}

void paged_attention(Pool& pool, const float* q, const std::uint8_t* k_cache, const std::uint8_t* v_cache, bool half,
                     const std::int32_t* positions, const std::int32_t* sequence, const std::int32_t* block_tables,
                     float* o, Index rows, Index heads, Index kv_heads, Index head_dim, Index block_size,
                     Index max_blocks, float* scratch) {
    const AttentionKernels& kernels = attention_kernels(pool.isa());
    const AttentionShape shape = shape_of(pool, heads, kv_heads, head_dim);
    const Index tile = shape.tile_rows(), tiles = ceil_div(rows, tile), group = shape.group(), element = half ? 2 : 4;
    const bool split = rows <= kFewRows;
    Index context = 0;
    for (Index row = 0; row < rows; ++row) context = positions[row] + 1 > context ? positions[row] + 1 : context;
    const Index splits = split ? ceil_div(context, kSplitKeys) : 1;
    const Index of_row = heads * partial_floats(shape), of_split = rows * of_row;
    float* const partial = scratch + pool.threads() * attention_scratch(shape);
    pool.parallel_chunks(tiles * kv_heads * splits, 1, [&](Index begin, Index end, int thread) {
        for (Index unit = begin; unit < end; ++unit) {
            const Index part = unit % splits, g = unit / splits % kv_heads, t = tiles - 1 - unit / splits / kv_heads;
            const Index last_row = (t + 1) * tile < rows ? (t + 1) * tile : rows;
            for (Index row = t * tile; row < last_row;) {
                Index limits[kQueries];
                const Index count = rows_together(positions, sequence, row, last_row, limits);
                if (count == 0) {
                    const Index at = (row * heads + g * group) * head_dim;
                    if (part == 0) std::memset(o + at, 0, static_cast<std::size_t>(group * head_dim) * sizeof(float));
                    ++row;
                    continue;
                }
                Index longest = 0;
                for (Index r = 0; r < count; ++r) longest = limits[r] > longest ? limits[r] : longest;
                AttentionTask task{};
                task.q = q + (row * heads + g * group) * head_dim;
                task.q_stride = heads * head_dim;
                task.limits = limits;
                task.rows = count;
                task.first_key = split ? part * kSplitKeys : 0;
                task.end_key = split && task.first_key + kSplitKeys < longest ? task.first_key + kSplitKeys : longest;
                task.k = k_cache + g * block_size * head_dim * element;
                task.v = v_cache + g * block_size * head_dim * element;
                task.table = block_tables + sequence[row] * max_blocks;
                task.block_size = block_size;
                task.scratch = scratch + thread * attention_scratch(shape);
                task.o = o + (row * heads + g * group) * head_dim;
                task.o_stride = heads * head_dim;
                task.partial =
                    split ? partial + part * of_split + row * of_row + g * group * partial_floats(shape) : nullptr;
                task.partial_stride = of_row;
                kernels.attend[half ? 1 : 0](shape, task);
                row += count;
            }
        }
    });
    if (!split) return;
    pool.parallel(
        rows,
        [&](Index begin, Index end) {
            for (Index row = begin; row < end; ++row) {
                if (positions[row] < 0) continue;
                const Index parts = ceil_div(positions[row] + 1, kSplitKeys);
                kernels.combine(shape, partial + row * of_row, of_split, parts, heads, o + row * heads * head_dim);
            }
        },
        4);
}

}  // namespace tritune
