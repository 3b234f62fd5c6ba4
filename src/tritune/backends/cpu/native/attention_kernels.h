// Kernels of attention for one instruction set: see attention_kernels.inc.
#pragma once

#include "common.h"

namespace tritune {

inline constexpr Index kKeys = 64;     // keys that are taken at a time
inline constexpr Index kQueries = 64;  // queries (rows times the heads of a group) of a tile, unless a group has more
inline constexpr Index kMaxHeadDim = 256;

// Sizes that all kernels need. A group's heads share one key/value head, so that they share what is loaded of it.
struct AttentionShape {
    Index heads, kv_heads, head_dim;
    Index padded;  // head_dim rounded up to a vector
    Index group() const { return heads / kv_heads; }
    Index tile_rows() const { return group() >= kQueries ? 1 : kQueries / group(); }
    Index tile_queries() const { return tile_rows() * group(); }
};

// The rows of a tile that see the same keys, and where those lie.
struct AttentionTask {
    const float* q;       // of the first row and head; the heads of a group are contiguous
    Index q_stride;       // from row to row
    const Index* limits;  // of each row: how many keys it sees, counted from the sequence's first
    Index rows;
    Index first_key, end_key;  // which of the sequence's keys to take
    // Keys of a paged cache [blocks, kv_heads, block_size, head_dim] if table is given, else rows `stride` apart.
    const void *k, *v;
    const std::int32_t* table;
    Index block_size, stride;
    float* scratch;  // attention_scratch floats
    // Where results go: normalised rows of o (o_stride apart) and log-sum-exps; or, partial: sums (`padded` floats),
    // highest score and weight of each query, one after the other.
    float *o, *lse;
    Index o_stride, lse_stride;
    float* partial;
    Index partial_stride;  // from row to row
};

struct AttentionBackwardTask {
    const float *qkv, *o, *lse, *dout;  // whole buffers
    float *dqkv, *delta;
    float *dk, *dv;    // [T, padded], of this head alone
    Index first, end;  // rows of the sequence
    Index head;
    float* scratch;
};

struct AttentionKernels {
    Index lane;
    void (*attend[2])(const AttentionShape&, const AttentionTask&);  // keys in f32, f16
    // o [heads of a row] of the partial results of `splits` parts, part_stride apart.
    void (*combine)(const AttentionShape&, const float* partial, Index part_stride, Index splits, Index heads,
                    float* o);
    void (*backward)(const AttentionShape&, const AttentionBackwardTask&);
    // target [head_dim] = the sum of `count` rows, stride apart.
    void (*add_rows)(const float* rows, Index stride, Index count, Index columns, float* target);
};

const AttentionKernels& attention_kernels(Isa isa);

inline Index partial_floats(const AttentionShape& shape) { return shape.padded + 2; }  // of a query

inline Index attention_scratch(const AttentionShape& shape) {
    const Index queries = shape.tile_queries(), d = shape.padded;
    return queries * (2 * d + kKeys + 2) + 2 * kKeys * d;
}

inline Index attention_backward_scratch(const AttentionShape& shape) {
    return shape.padded * kKeys * 8 + 2 * kKeys * kKeys;
}

}  // namespace tritune
