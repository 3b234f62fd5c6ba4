// Float vectors of an instruction set, as wide as its registers. Included by kernels only. GCC's and Clang's vector
// types do the arithmetic.
#pragma once

#include <cstring>

#if defined(TRITUNE_ISA_avx512vnni) || defined(TRITUNE_ISA_avxvnni) || defined(TRITUNE_ISA_avx2)
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the "undefined" operand of its own AVX-512 intrinsics for a mistake (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#elif defined(TRITUNE_ISA_neon)
#include <arm_neon.h>
#endif

#include "common.h"

namespace tritune::TRITUNE_ISA {

#if defined(TRITUNE_ISA_avx512vnni)
constexpr int kLanes = 16, kTileRows = 12, kTileVectors = 2, kDots = 4;
#elif defined(TRITUNE_ISA_avxvnni) || defined(TRITUNE_ISA_avx2)
constexpr int kLanes = 8, kTileRows = 6, kTileVectors = 2, kDots = 2;
#elif defined(TRITUNE_ISA_neon)
constexpr int kLanes = 4, kTileRows = 6, kTileVectors = 4, kDots = 4;
#else
constexpr int kLanes = 4, kTileRows = 4, kTileVectors = 2, kDots = 2;
#endif

template <int W>
struct Floats {
    typedef float Type __attribute__((vector_size(4 * W)));
};
template <>
struct Floats<1> {
    typedef float Type;
};
template <int W>
using Vector = typename Floats<W>::Type;

using Half = std::uint16_t;  // the bits of an IEEE half

static inline float widen(float x) { return x; }

// Exact: subnormal halves are normal floats, infinities and NaN stay what they are.
static inline float widen(Half h) {
    const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16, rest = h & 0x7fffu;
    std::uint32_t bits;
    if (rest >= 0x7c00u) {
        bits = rest << 13 | 0x7f800000u;
    } else {
        // The exponent's bias differs by 112: as a number, a factor of 2^112, exact also for subnormals.
        float x;
        bits = rest << 13;
        std::memcpy(&x, &bits, 4);
        x *= 0x1p112f;
        std::memcpy(&bits, &x, 4);
    }
    bits |= sign;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

template <int W>
static inline Vector<W> load(const float* p) {
    Vector<W> v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <int W>
static inline Vector<W> load(const Half* p) {
#if defined(TRITUNE_ISA_avx512vnni)
    if constexpr (W == 16) {
        return (Vector<16>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
#endif
#if defined(TRITUNE_ISA_avx512vnni) || defined(TRITUNE_ISA_avxvnni) || defined(TRITUNE_ISA_avx2)
    if constexpr (W == 8) {
        return (Vector<8>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
#elif defined(TRITUNE_ISA_neon)
    if constexpr (W == 4) {
        return (Vector<4>)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
    }
#endif
    float v[W];
    for (int i = 0; i < W; ++i) v[i] = widen(p[i]);
    return load<W>(v);
}

template <int W>
static inline void store(float* p, Vector<W> v) {
    std::memcpy(p, &v, sizeof v);
}

template <int W>
static inline float sum(Vector<W> v) {
    float x[W];
    std::memcpy(x, &v, sizeof v);
    for (int half = W / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) x[i] += x[i + half];
    }
    return x[0];
}

}  // namespace tritune::TRITUNE_ISA
