// Kernels on rough rows: a table's rows in 6 bits a weight, with how far each may be from the row that it stands for.
#pragma once

#include "common.h"

namespace tritune {

inline constexpr Index kRoughChunk = 256;       // weights of a piece of a row
inline constexpr Index kRoughChunkBytes = 192;  // 128 bytes of lower four bits, 64 of upper two

inline constexpr Index rough_chunks(Index columns) { return ceil_div(columns, kRoughChunk); }

// A rough row is w' = scale * (code - 32), code in 1 … 63. What is known of it and of the stored row w, never too small:
struct RoughRows {
    const std::uint8_t* codes;  // [V, chunks, kRoughChunkBytes]
    const float* scales;        // [V]
    const float* errors;        // [V] >= ‖w - w'‖
    const float* norms;         // [V] >= ‖w‖
};

// x as integers of 16 bits: scale * (256 * high + low), and what that leaves.
struct RoughInput {
    const std::int8_t* planes;  // high [width], then low [width], width = chunks * kRoughChunk
    std::int32_t sum_high, sum_low;
    float scale;
    float per_error, per_norm;  // |w'·x' - fl(w·x)| <= errors * per_error + norms * per_norm + kRoughTiny
};

inline constexpr float kRoughTiny = 1e-30f;  // for products that are denormal

struct RoughKernels {
    // A table's row (kind: f32, f16, bf16) as a rough one.
    void (*pack[3])(const void* row, Index columns, std::uint8_t* codes, float* scale, float* error, float* norm);
    // out[r * ldo + v] = w'·x' for rows v in [begin, end) and `count` <= 4 inputs.
    void (*dots)(const RoughRows& rows, Index columns, const RoughInput* inputs, Index count, float* out, Index ldo,
                 Index begin, Index end);
    // Bit v of the result, for v < n <= 32: z + bound of row first + v is not below `least`, or z is at least `probable`.
    std::uint32_t (*possible)(const RoughRows& rows, const RoughInput& input, const float* z, Index first, Index n,
                              float least, float probable);
};

const RoughKernels& rough_kernels(Isa isa);

// The bound of a row: how far w'·x' may be from the product that `logits` computes.
inline float rough_bound(const RoughRows& rows, const RoughInput& input, Index row) {
    return rows.errors[row] * input.per_error + rows.norms[row] * input.per_norm + kRoughTiny;
}

}  // namespace tritune
