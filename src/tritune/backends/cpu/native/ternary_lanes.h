// 16 rows x 4 columns of codes and their sums in the registers of an instruction set. Included by kernels only: all
// of it is in the namespace of the instruction set.
//
//   Codes   64 bytes; Sums: 16 sums; Four: 4 bytes of a panel's row, in every lane
//   kSpan   how many dot products a Sums holds before it must be added to the int32 sums in memory
//   kWide   whether codes times 64 may be multiplied: then a line is only masked, not shifted
#pragma once

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

#include <cstring>

#include "common.h"

namespace tritune::TRITUNE_ISA {

#if defined(TRITUNE_ISA_avx512vnni)

struct Lanes {
    static constexpr Index kSpan = Index{1} << 40;
    static constexpr bool kWide = true;
    static constexpr int kPanelRows = 12, kBlocks = 2;  // 24 sums, 2 codes, 1 four: 27 of 32 registers
    using Codes = __m512i;
    using Sums = __m512i;
    using Four = __m512i;
    static inline Sums zero() { return _mm512_setzero_si512(); }
    static inline Codes load(const std::uint8_t* p) { return _mm512_load_si512(p); }
    static inline void store(std::uint8_t* p, Codes c) { _mm512_store_si512(p, c); }
    template <int J>
    static inline Codes part(Codes line) {
        return _mm512_and_si512(J == 0 ? line : _mm512_srli_epi16(line, 2 * J), _mm512_set1_epi8(3));
    }
    template <int J>
    static inline Codes masked(Codes line) {
        return _mm512_and_si512(line, _mm512_set1_epi8(static_cast<char>(3 << (2 * J))));
    }
    static inline Four four(const std::int8_t* p) {
        std::int32_t word;
        std::memcpy(&word, p, 4);
        return _mm512_set1_epi32(word);
    }
    static inline Sums dot(Sums s, Codes c, Four q) { return _mm512_dpbusd_epi32(s, c, q); }
    // s0 + s1 / 4 + s2 / 16 + s3 / 64, all exact
    static inline Sums join(Sums s0, Sums s1, Sums s2, Sums s3) {
        return _mm512_add_epi32(_mm512_add_epi32(s0, _mm512_srai_epi32(s1, 2)),
                                _mm512_add_epi32(_mm512_srai_epi32(s2, 4), _mm512_srai_epi32(s3, 6)));
    }
    static inline void flush(Sums s, std::int32_t* p, bool first) {
        _mm512_storeu_si512(p, first ? s : _mm512_add_epi32(s, _mm512_loadu_si512(p)));
    }
    static inline void prefetch(const std::uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
    static inline void prefetch_far(const std::int8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
};

#elif defined(TRITUNE_ISA_avxvnni) || defined(TRITUNE_ISA_avx2)

struct Lanes {
    struct Pair {
        __m256i a, b;
    };
    static constexpr int kPanelRows = 6, kBlocks = 1;  // 12 sums, 2 codes, 1 four of 16 registers
    using Codes = Pair;
    using Sums = Pair;
    using Four = __m256i;
    static inline Sums zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static inline Codes load(const std::uint8_t* p) {
        const __m256i* v = reinterpret_cast<const __m256i*>(p);
        return {_mm256_load_si256(v), _mm256_load_si256(v + 1)};
    }
    static inline void store(std::uint8_t* p, Codes c) {
        __m256i* v = reinterpret_cast<__m256i*>(p);
        _mm256_store_si256(v, c.a);
        _mm256_store_si256(v + 1, c.b);
    }
    template <int J>
    static inline __m256i half(__m256i line) {
        return _mm256_and_si256(J == 0 ? line : _mm256_srli_epi16(line, 2 * J), _mm256_set1_epi8(3));
    }
    template <int J>
    static inline Codes part(Codes line) {
        return {half<J>(line.a), half<J>(line.b)};
    }
    static inline Four four(const std::int8_t* p) {
        std::int32_t word;
        std::memcpy(&word, p, 4);
        return _mm256_set1_epi32(word);
    }
    static inline void add(std::int32_t* p, __m256i s, bool first) {
        __m256i* v = reinterpret_cast<__m256i*>(p);
        _mm256_storeu_si256(v, first ? s : _mm256_add_epi32(s, _mm256_loadu_si256(v)));
    }
    static inline void prefetch(const std::uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
    static inline void prefetch_far(const std::int8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

#if defined(TRITUNE_ISA_avxvnni)
    static constexpr Index kSpan = Index{1} << 40;
    static constexpr bool kWide = true;
    template <int J>
    static inline Codes masked(Codes line) {
        const __m256i mask = _mm256_set1_epi8(static_cast<char>(3 << (2 * J)));
        return {_mm256_and_si256(line.a, mask), _mm256_and_si256(line.b, mask)};
    }
    static inline Sums dot(Sums s, Codes c, Four q) {
        return {_mm256_dpbusd_avx_epi32(s.a, c.a, q), _mm256_dpbusd_avx_epi32(s.b, c.b, q)};
    }
    static inline __m256i join_half(__m256i s0, __m256i s1, __m256i s2, __m256i s3) {
        return _mm256_add_epi32(_mm256_add_epi32(s0, _mm256_srai_epi32(s1, 2)),
                                _mm256_add_epi32(_mm256_srai_epi32(s2, 4), _mm256_srai_epi32(s3, 6)));
    }
    static inline Sums join(Sums s0, Sums s1, Sums s2, Sums s3) {
        return {join_half(s0.a, s1.a, s2.a, s3.a), join_half(s0.b, s1.b, s2.b, s3.b)};
    }
    static inline void flush(Sums s, std::int32_t* p, bool first) {
        add(p, s.a, first);
        add(p + 8, s.b, first);
    }
#else
    // 16-bit sums of pairs: a product pair is at least 2 * 2 * -128 = -512, so 64 of them reach -32768 and no further.
    static constexpr Index kSpan = 64;
    static constexpr bool kWide = false;
    static inline Sums dot(Sums s, Codes c, Four q) {
        return {_mm256_add_epi16(s.a, _mm256_maddubs_epi16(c.a, q)), _mm256_add_epi16(s.b, _mm256_maddubs_epi16(c.b, q))};
    }
    static inline void flush(Sums s, std::int32_t* p, bool first) {
        const __m256i ones = _mm256_set1_epi16(1);
        add(p, _mm256_madd_epi16(s.a, ones), first);
        add(p + 8, _mm256_madd_epi16(s.b, ones), first);
    }
#endif
};

#elif defined(TRITUNE_ISA_neon)

struct Lanes {
    static constexpr Index kSpan = Index{1} << 40;
    static constexpr bool kWide = false;
    static constexpr int kPanelRows = 6, kBlocks = 1;  // 24 sums, 4 codes, 1 four of 32 registers
    struct Codes {
        uint8x16_t v[4];
    };
    struct Sums {
        int32x4_t v[4];
    };
    using Four = int8x16_t;
    static inline Sums zero() {
        const int32x4_t z = vdupq_n_s32(0);
        return {{z, z, z, z}};
    }
    static inline Codes load(const std::uint8_t* p) {
        return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
    }
    static inline void store(std::uint8_t* p, Codes c) {
        for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, c.v[i]);
    }
    template <int J>
    static inline Codes part(Codes line) {
        const uint8x16_t mask = vdupq_n_u8(3);
        if constexpr (J > 0) {
            for (int i = 0; i < 4; ++i) line.v[i] = vshrq_n_u8(line.v[i], 2 * J);
        }
        for (int i = 0; i < 4; ++i) line.v[i] = vandq_u8(line.v[i], mask);
        return line;
    }
    static inline Four four(const std::int8_t* p) {
        std::int32_t word;
        std::memcpy(&word, p, 4);
        return vreinterpretq_s8_s32(vdupq_n_s32(word));
    }
    static inline Sums dot(Sums s, Codes c, Four q) {
        for (int i = 0; i < 4; ++i) s.v[i] = vdotq_s32(s.v[i], vreinterpretq_s8_u8(c.v[i]), q);
        return s;
    }
    static inline void flush(Sums s, std::int32_t* p, bool first) {
        for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, first ? s.v[i] : vaddq_s32(s.v[i], vld1q_s32(p + 4 * i)));
    }
    static inline void prefetch(const std::uint8_t* p) { __builtin_prefetch(p); }
    static inline void prefetch_far(const std::int8_t* p) { __builtin_prefetch(p, 0, 2); }
};

#else

// Vectors of 16 bytes in GCC's and Clang's own notation: SSE2, NEON without dot products, or whatever there is. Bytes
// are taken as pairs, the lower and the upper one of a 16-bit lane, so that nothing has to be widened.
struct Lanes {
    typedef std::uint8_t Bytes __attribute__((vector_size(16)));
    typedef std::uint16_t Halves __attribute__((vector_size(16)));
    typedef std::uint32_t Words __attribute__((vector_size(16)));
    typedef std::int32_t Ints __attribute__((vector_size(16)));
    // A lane gains two products a step, together at least 2 * 2 * -128 = -512: 60 of them stay above -32768.
    static constexpr Index kSpan = 60;
    static constexpr bool kWide = false;
    static constexpr int kPanelRows = 3, kBlocks = 1;  // 12 sums, 2 codes, 2 of a four of 16 registers
    struct Codes {
        Bytes v[4];
    };
    struct Sums {
        Halves v[4];  // modulo 2^16, which is right for signed sums too: two lanes for each of 4 rows
    };
    struct Four {
        Halves lower, upper;  // columns 0 and 2, and 1 and 3, again and again
    };
    static inline Sums zero() { return {}; }
    static inline Codes load(const std::uint8_t* p) {
        Codes c;
        std::memcpy(c.v, p, 64);
        return c;
    }
    static inline void store(std::uint8_t* p, Codes c) { std::memcpy(p, c.v, 64); }
    template <int J>
    static inline Codes part(Codes line) {
        for (int i = 0; i < 4; ++i) line.v[i] = line.v[i] >> (2 * J) & 3;
        return line;
    }
    static inline Four four(const std::int8_t* p) {
        const auto pair = [&](int first) {
            const auto low = static_cast<std::uint16_t>(p[first]), high = static_cast<std::uint16_t>(p[first + 2]);
            const Words words = (static_cast<std::uint32_t>(high) << 16 | low) - Words{};
            return reinterpret_cast<Halves>(words);
        };
        return {pair(0), pair(1)};
    }
    static inline Sums dot(Sums s, Codes c, Four q) {
        for (int i = 0; i < 4; ++i) {
            const Halves pairs = reinterpret_cast<Halves>(c.v[i]);
            s.v[i] += (pairs & 255) * q.lower + (pairs >> 8) * q.upper;
        }
        return s;
    }
    static inline void flush(Sums s, std::int32_t* p, bool first) {
        for (int i = 0; i < 4; ++i) {
            const Words both = reinterpret_cast<Words>(s.v[i]);
            Ints sums = (reinterpret_cast<Ints>(both << 16) >> 16) + (reinterpret_cast<Ints>(both) >> 16);
            if (!first) {
                Ints before;
                std::memcpy(&before, p + 4 * i, 16);
                sums += before;
            }
            std::memcpy(p + 4 * i, &sums, 16);
        }
    }
    static inline void prefetch(const std::uint8_t* p) { __builtin_prefetch(p); }
    static inline void prefetch_far(const std::int8_t* p) { __builtin_prefetch(p, 0, 2); }
};

#endif

}  // namespace tritune::TRITUNE_ISA
