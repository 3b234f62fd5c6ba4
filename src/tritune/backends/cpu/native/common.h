// What every kernel file starts from: integer types and the names of the instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tritune {

using Index = std::int64_t;  // of elements, rows and bytes; never 32 bits, a table has more elements than that

// The instruction sets that kernels are compiled for. The higher one of a family contains the lower ones.
enum class Isa : int {
    portable = 0,    // whatever the compiler assumes of the architecture: SSE2 on x86-64, NEON on aarch64
    neon = 1,        // aarch64 with dot products (ARMv8.2 FEAT_DotProd)
    avx2 = 2,        // x86-64-v3: AVX2, FMA, F16C, BMI2
    avxvnni = 3,     // avx2 and AVX-VNNI (256-bit dot products)
    avx512vnni = 4,  // avxvnni's width doubled: AVX-512 F, BW, DQ, VL, VNNI
};

inline constexpr int kNumIsas = 5;
inline constexpr std::size_t kCacheLine = 64;

inline constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
inline constexpr Index round_up(Index a, Index b) { return ceil_div(a, b) * b; }

}  // namespace tritune
