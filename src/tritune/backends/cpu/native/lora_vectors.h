// Vectors of 4, 8 and 16 floats beside those of the instruction set's own width: a LoRA rank is often shorter.
#pragma once

#include "vectors.h"

#if defined(__clang__)
#define TRITUNE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TRITUNE_UNROLL _Pragma("GCC unroll 64")
#endif

namespace tritune {
namespace TRITUNE_ISA {

template <int N>
struct Floats {
    typedef float Type __attribute__((vector_size(4 * N)));
};
template <>
struct Floats<1> {
    typedef float Type;
};
template <int N>
using Vector = typename Floats<N>::Type;

template <int N>
TRITUNE_INLINE Vector<N> load_n(const float* p) {
    Vector<N> v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <int N>
TRITUNE_INLINE void store_n(float* p, Vector<N> v) {
    std::memcpy(p, &v, sizeof v);
}

// One half widened.
TRITUNE_INLINE float widen_one(std::uint16_t h) {
    H halves = {};
    halves[0] = h;
    return widen_f16(halves)[0];
}

template <int N>
TRITUNE_INLINE Vector<N> load_n(const std::uint16_t* p) {
    if constexpr (N == W) {
        return widen_f16(load_halves(p));
#if defined(__AVX2__)
    } else if constexpr (N == 8) {
        return (Vector<8>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    } else if constexpr (N == 4) {
        return (Vector<4>)_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#endif
    } else {
        float v[N];
        for (int i = 0; i < N; ++i) v[i] = widen_one(p[i]);
        return load_n<N>(v);
    }
}

TRITUNE_INLINE float widened(float x) { return x; }
TRITUNE_INLINE float widened(std::uint16_t h) { return widen_one(h); }

// a0 b0 a1 b1 ... of the lower or upper halves.
template <int N>
TRITUNE_INLINE Vector<N> zip_low(Vector<N> a, Vector<N> b) {
    if constexpr (N == 16) {
        return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    } else if constexpr (N == 8) {
        return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    } else {
        return __builtin_shufflevector(a, b, 0, 4, 1, 5);
    }
}
template <int N>
TRITUNE_INLINE Vector<N> zip_high(Vector<N> a, Vector<N> b) {
    if constexpr (N == 16) {
        return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    } else if constexpr (N == 8) {
        return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    } else {
        return __builtin_shufflevector(a, b, 2, 6, 3, 7);
    }
}

// Element i = the sum of rows[i]. Pairs (i, i + half) are zipped and added until one vector is left.
template <int N>
TRITUNE_INLINE Vector<N> sum_rows(Vector<N> (&rows)[N]) {
    TRITUNE_UNROLL
    for (int half = N / 2; half > 0; half /= 2) {
        TRITUNE_UNROLL
        for (int i = 0; i < half; ++i) {
            rows[i] = zip_low<N>(rows[i], rows[i + half]) + zip_high<N>(rows[i], rows[i + half]);
        }
    }
    return rows[0];
}

template <int N>
TRITUNE_INLINE void transpose_n(Vector<N> (&rows)[N]) {
    TRITUNE_UNROLL
    for (int round = 1; round < N; round *= 2) {
        Vector<N> next[N];
        TRITUNE_UNROLL
        for (int i = 0; i < N / 2; ++i) {
            next[2 * i] = zip_low<N>(rows[i], rows[i + N / 2]);
            next[2 * i + 1] = zip_high<N>(rows[i], rows[i + N / 2]);
        }
        TRITUNE_UNROLL
        for (int i = 0; i < N; ++i) rows[i] = next[i];
    }
}

}  // namespace TRITUNE_ISA
}  // namespace tritune
