// One row at a time: what the row ops, the sampler and the optimizer do to contiguous floats.
#pragma once

#include "common.h"

namespace tritune {

enum Activation : int { kRelu2 = 0, kSilu = 1 };
enum Format : int { kF32 = 0, kF16 = 1, kBf16 = 2 };  // of tables and caches

inline constexpr Index kMaximaBlock = 64;

struct RowKernels {
    // y = x, or with gain its RMS norm (y may be x); codes and *scale: y rounded to int8, unless codes is null.
    void (*norm_quant)(const float* x, const float* gain, float eps, float* y, std::int8_t* codes, float* scale, Index n);
    // dx = (or +=) gradient through the norm; dx may be dy unless accumulate.
    void (*norm_backward)(const float* x, const float* gain, float eps, const float* dy, float* dx, bool accumulate, Index n);
    void (*glu)(const float* gate, const float* up, int activation, float* z, Index n);
    // dgate and dup may be gate and up.
    void (*glu_backward)(const float* gate, const float* up, int activation, const float* gain, float eps, const float* dy,
                         float* dgate, float* dup, Index n);
    // Pairs (low[i], high[i]) turned by the angle of (cosine[i], sign * sine[i]); the outputs may be the inputs.
    void (*rotate)(const float* low, const float* high, const float* cosine, const float* sine, float sign, float* out_low,
                   float* out_high, Index half);
    void (*widen)(const void* x, int format, float* y, Index n);
    void (*narrow)(const float* x, int format, void* y, Index n);  // f32 or f16
    double (*sum_squares)(const float* x, Index n);
    // One step on n parameters; factors as in adamw.cpp.
    void (*adamw)(float* parameters, const float* grads, float* m, float* v, const float* factors, Index n);
    float (*maximum)(const float* x, Index n);               // -inf for n = 0
    double (*sum_exp)(const float* x, float top, Index n);   // of e^(x - top)
    void (*block_maxima)(const float* x, float* maxima, Index n);  // of each kMaximaBlock of x
    // Sampling: z = the logits with the penalty, the allowed set and the temperature; null sets are not looked at.
    void (*warp)(const float* logits, const std::uint32_t* seen, const std::uint32_t* allowed, float penalty,
                 float temperature, float* z, Index n);
    // For tokens first … first + n - 1: upper24[i] of their hash, weight[i] = e^(z - top).
    void (*draw_words)(const float* z, float top, std::uint32_t seed_hash, std::uint32_t first, std::uint32_t* upper24,
                       float* weight, Index n);
};

const RowKernels& row_kernels(Isa isa);

}  // namespace tritune
