// Float vectors of the instruction set that a kernel file is compiled for, in GCC's and Clang's vector extension: one
// source for AVX-512, AVX2, NEON and SSE2. Include it in *_kernels.inc only. Sums and products are contracted to FMAs.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // of GCC's own AVX-512 headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "common.h"

#if !defined(__GNUC__)
#error "the kernels need GCC or Clang (on Windows: clang-cl)"
#endif

#define TRITUNE_INLINE inline __attribute__((always_inline))

namespace tritune {
namespace TRITUNE_ISA {

#if defined(__AVX512F__)
inline constexpr int W = 16;
#elif defined(__AVX2__)
inline constexpr int W = 8;
#else
inline constexpr int W = 4;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

typedef float F __attribute__((vector_size(4 * W)));
typedef std::int32_t I __attribute__((vector_size(4 * W)));
typedef std::uint32_t U __attribute__((vector_size(4 * W)));
typedef std::uint16_t H __attribute__((vector_size(2 * W)));
typedef std::int8_t B __attribute__((vector_size(W)));

// Storage of a table or a cache. bf16 and f16 are raw 16-bit words; int8 rows have a scale beside them.
enum class Kind : int { f32 = 0, f16 = 1, bf16 = 2, i8 = 3 };

TRITUNE_INLINE F splat(float x) { return x - F{}; }
TRITUNE_INLINE I splat_i(std::int32_t x) { return x - I{}; }

TRITUNE_INLINE F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

TRITUNE_INLINE void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }

// The first n < W elements, the others 0.
TRITUNE_INLINE F load_some(const float* p, Index n) {
    float x[W] = {};
    std::memcpy(x, p, static_cast<std::size_t>(n) * sizeof(float));
    return load(x);
}

TRITUNE_INLINE void store_some(float* p, F x, Index n) {
    std::memcpy(p, &x, static_cast<std::size_t>(n) * sizeof(float));
}

TRITUNE_INLINE F as_float(I x) { return reinterpret_cast<F>(x); }
TRITUNE_INLINE I as_int(F x) { return reinterpret_cast<I>(x); }

TRITUNE_INLINE F choose(I mask, F yes, F no) { return as_float((as_int(yes) & mask) | (as_int(no) & ~mask)); }

TRITUNE_INLINE F maximum(F a, F b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#elif defined(__aarch64__)
    return vmaxq_f32(a, b);
#else
    return choose(a > b, a, b);
#endif
}

// Halves of a float number (bits) widened exactly; inf and NaN stay what they are.
TRITUNE_INLINE F widen_f16(H h) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(reinterpret_cast<__m256i>(h));
#elif defined(__AVX2__)
    return _mm256_cvtph_ps(reinterpret_cast<__m128i>(h));
#elif defined(__aarch64__)
    return vcvt_f32_f16(vreinterpret_f16_u16(reinterpret_cast<uint16x4_t>(h)));
#else
    const U bits = __builtin_convertvector(h, U);
    const I magnitude = reinterpret_cast<I>((bits & 0x7fffu) << 13);
    const F scaled = as_float(magnitude) * 0x1p112f;  // the exponent's bias is 127 - 15 too small
    const I special = magnitude >= 0x0f800000;        // inf or NaN
    const I body = (as_int(scaled) & ~special) | ((magnitude | 0x7f800000) & special);
    return as_float(body | reinterpret_cast<I>((bits & 0x8000u) << 16));
#endif
}

TRITUNE_INLINE F widen_bf16(H h) { return reinterpret_cast<F>(__builtin_convertvector(h, U) << 16); }

TRITUNE_INLINE H load_halves(const std::uint16_t* p) {
    H h;
    std::memcpy(&h, p, sizeof h);
    return h;
}

// W elements of a table as floats; `some`: only the first n of them exist.
template <Kind kind>
struct Stored {
    using Type = std::uint16_t;
    static TRITUNE_INLINE F widen(H h) { return kind == Kind::f16 ? widen_f16(h) : widen_bf16(h); }
    static TRITUNE_INLINE F load(const Type* p) { return widen(load_halves(p)); }
    static TRITUNE_INLINE F load_some(const Type* p, Index n) {
        Type x[W] = {};
        std::memcpy(x, p, static_cast<std::size_t>(n) * sizeof(Type));
        return load(x);
    }
};
template <>
struct Stored<Kind::i8> {
    using Type = std::int8_t;
    static TRITUNE_INLINE F load(const Type* p) {
        B bytes;
        std::memcpy(&bytes, p, sizeof bytes);
        return __builtin_convertvector(__builtin_convertvector(bytes, I), F);
    }
    static TRITUNE_INLINE F load_some(const Type* p, Index n) {
        Type x[W] = {};
        std::memcpy(x, p, static_cast<std::size_t>(n));
        return load(x);
    }
};
template <>
struct Stored<Kind::f32> {
    using Type = float;
    static TRITUNE_INLINE F load(const Type* p) { return TRITUNE_ISA::load(p); }
    static TRITUNE_INLINE F load_some(const Type* p, Index n) { return TRITUNE_ISA::load_some(p, n); }
};

TRITUNE_INLINE float sum(F x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(x);
#else
    float values[W];
    std::memcpy(values, &x, sizeof x);
    for (int width = W / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) values[i] += values[i + width];
    }
    return values[0];
#endif
}

TRITUNE_INLINE float highest(F x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(x);
#else
    float values[W];
    std::memcpy(values, &x, sizeof x);
    for (int width = W / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) values[i] = values[i] > values[i + width] ? values[i] : values[i + width];
    }
    return values[0];
#endif
}

// e^x for x <= 88, relative error below 2e-7; 0 below -87.3 (where the result would be denormal), also for -inf.
// The usual reduction by multiples of ln 2 (in two parts), then a Taylor-like polynomial of degree 6 on [-0.35, 0.35].
TRITUNE_INLINE F exponential(F x) {
    const I dead = x < splat(-87.33654f);
    const F clamped = maximum(x, splat(-87.33654f));
    const F magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to an integer
    const F shifted = clamped * 1.44269504f + magic;
    const F n = shifted - magic;
    F r = clamped - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    F p = splat(1.3888889e-3f);
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666668e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 5.0e-1f;
    p = p * (r * r) + r + 1.0f;
    const I exponent = (as_int(shifted) - as_int(magic)) << 23;
    return as_float((as_int(p) + exponent) & ~dead);
}

TRITUNE_INLINE U load_words(const void* p) {
    U x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

// sums + products of unsigned bytes a < 64 and signed bytes b, four to a lane.
TRITUNE_INLINE I dot_bytes(I sums, U a, U b) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<I>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(a),
                                                   reinterpret_cast<__m512i>(b)));
#elif defined(__AVXVNNI__)
    return reinterpret_cast<I>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sums), reinterpret_cast<__m256i>(a),
                                                       reinterpret_cast<__m256i>(b)));
#elif defined(__AVX2__)
    const __m256i pairs =
        _mm256_maddubs_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));  // below 2¹⁵
    return sums + reinterpret_cast<I>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(__ARM_FEATURE_DOTPROD)
    return reinterpret_cast<I>(
        vdotq_s32(reinterpret_cast<int32x4_t>(sums), reinterpret_cast<int8x16_t>(a), reinterpret_cast<int8x16_t>(b)));
#else
    // Lower and upper bytes of 16-bit lanes: a pair of products is below 2 * 63 * 128 < 2¹⁵.
    typedef std::int16_t S __attribute__((vector_size(4 * W)));
    const S left = reinterpret_cast<S>(a), right = reinterpret_cast<S>(b);
    const S lower = reinterpret_cast<S>(reinterpret_cast<U>(right) << 8 & 0xff00ff00u) >> 8;
    const I pairs = reinterpret_cast<I>((left & 255) * lower + (left >> 8) * (right >> 8));
    sums += (reinterpret_cast<I>(reinterpret_cast<U>(pairs) << 16) >> 16) + (pairs >> 16);
    return sums;
#endif
}

// Fetches what will be read soon, n elements, into the second cache.
template <class T>
TRITUNE_INLINE void fetch(const T* p, Index n) {
    for (Index i = 0; i < n; i += static_cast<Index>(kCacheLine / sizeof(T))) __builtin_prefetch(p + i, 0, 2);
}

// In place: rows become columns, W × W.
TRITUNE_INLINE void transpose(F (&rows)[W]) {
    for (int round = 1; round < W; round *= 2) {
        F next[W];
#pragma GCC unroll 16
        for (int i = 0; i < W / 2; ++i) {
            const F a = rows[i], b = rows[i + W / 2];
#if defined(__AVX512F__)
            next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            next[2 * i + 1] =
                __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
            next[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            next[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
            next[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            next[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
        }
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) rows[i] = next[i];
    }
}

}  // namespace TRITUNE_ISA
}  // namespace tritune
