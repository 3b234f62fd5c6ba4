// Number formats and functions that compilers turn into vector code. For *_kernels.inc files: everything is static
// inline, see README.md.
#pragma once

#include <cstdint>

#if defined(_MSC_VER) && !defined(__clang__)
#define TRITUNE_INLINE static __forceinline
#define TRITUNE_SIMD
#define TRITUNE_SIMD_SUM(...)
#define TRITUNE_SIMD_MAX(variable)
#else
#define TRITUNE_INLINE static inline __attribute__((always_inline, unused))
#define TRITUNE_PRAGMA(text) _Pragma(#text)
// Before a loop whose iterations are independent, but for sums (or a maximum) whose order is free.
#define TRITUNE_SIMD TRITUNE_PRAGMA(omp simd)
#define TRITUNE_SIMD_SUM(...) TRITUNE_PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define TRITUNE_SIMD_MAX(variable) TRITUNE_PRAGMA(omp simd reduction(max : variable))
#endif

namespace tritune {

TRITUNE_INLINE std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
TRITUNE_INLINE float float_of(std::uint32_t x) { return __builtin_bit_cast(float, x); }

// 2^23 * 1.5: adding it to |x| < 2^22 and taking it away rounds x to the nearest integer, halves to even.
inline constexpr float kRounder = 12582912.0f;

TRITUNE_INLINE float round_even(float x) { return (x + kRounder) - kRounder; }

// e^x within 2 units in the last place; 0 below -87.3, not more than e^88; NaN stays NaN.
// Range reduction and coefficients: Cephes (Moshier), expf.
TRITUNE_INLINE float exp_float(float x) {
    const float upper = x > 88.0f ? 88.0f : x;
    const float clamped = upper < -87.3f ? -87.3f : upper;
    const float shifted = clamped * 1.44269504088896341f + kRounder;
    const float n = shifted - kRounder;
    const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const float power = float_of((bits_of(shifted) << 23) + (127u << 23));  // 2^n: n is in shifted's lowest bits
    return x < -87.3f ? 0.0f : p * power;
}

TRITUNE_INLINE float bf16_to_float(std::uint16_t x) { return float_of(static_cast<std::uint32_t>(x) << 16); }

// Exact. The exponents differ by 112: scaling by 2^112 brings normal and subnormal numbers to their place.
TRITUNE_INLINE float half_to_float(std::uint16_t x) {
    const std::uint32_t magnitude = static_cast<std::uint32_t>(x & 0x7fffu) << 13;
    const std::uint32_t scaled = bits_of(float_of(magnitude) * 5.192296858534828e33f);
    const std::uint32_t special = magnitude | 0x7f800000u;  // infinity, NaN
    return float_of((magnitude >= 0x0f800000u ? special : scaled) | static_cast<std::uint32_t>(x & 0x8000u) << 16);
}

// Rounded to nearest, halves to even; infinity from 65520 on. After Giesen's float_to_half_fast3_rtne.
TRITUNE_INLINE std::uint16_t float_to_half(float x) {
    const std::uint32_t bits = bits_of(x), sign = bits & 0x80000000u, magnitude = bits ^ sign;
    const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t normal = (magnitude + 0xc8000fffu + (magnitude >> 13 & 1u)) >> 13;
    const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    return static_cast<std::uint16_t>((magnitude >= 0x47800000u ? special : finite) | sign >> 16);
}

}  // namespace tritune
