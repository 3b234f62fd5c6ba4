// The float kernels of LoRA, one table for each instruction set. Sums run over k in an order that depends on the sizes
// alone, so results are the same however rows and columns are shared out.
#pragma once

#include "common.h"
#include "isa.h"

namespace tritune {

struct LoraKernels {
    // c [m, n] = x [m, k] · a [n, k]ᵀ; a is f32, or f16 if half. Strides in elements.
    void (*rows_by_rows)(Index m, Index n, Index k, const float* x, Index x_stride, const void* a, bool half,
                         Index a_stride, float* c, Index c_stride);
    // y [n] += b [n, k] · u [k]: for k as short as a rank. b is f32, or f16 if half.
    void (*add_short_rows)(Index n, Index k, const void* b, bool half, const float* u, float* y);
    // c [m, n] += a · b [k, n]; element (m, k) of a is a[m * a_row + k * a_column].
    void (*product)(Index m, Index n, Index k, const float* a, Index a_row, Index a_column, const float* b,
                    Index b_stride, float* c, Index c_stride);
    // out f32 [k, stride], columns 0 ... n - 1 = b [n, k]ᵀ; b is f32, or f16 if half.
    void (*transpose)(const void* b, bool half, Index n, Index k, float* out, Index stride);
    // out [count] = elements first ... of x after dropout, see ops/dropout.py; hash: of seed, step and module.
    void (*dropout)(const float* x, Index count, std::uint32_t hash, std::uint32_t first, std::uint32_t threshold,
                    float keep, float* out);
    // y [count] += x [count].
    void (*add)(const float* x, Index count, float* y);
};

const LoraKernels& lora_kernels(Isa isa);

// One word more in a hash of words: ops/hashing.py.
static inline std::uint32_t hash_word(std::uint32_t hash, std::uint32_t word) {
    const std::uint32_t state = (hash + word) * 747796405u + 2891336453u;
    const std::uint32_t mixed = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
    return (mixed >> 22) ^ mixed;
}

}  // namespace tritune
