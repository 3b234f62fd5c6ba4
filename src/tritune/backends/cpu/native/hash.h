// The counter-based random generator of ops/hashing.py (PCG RXS-M-XS).
#pragma once

#include <cstdint>

#include "vector_math.h"

namespace tritune {

TRITUNE_INLINE std::uint32_t hash_u32(std::uint32_t x) {
    const std::uint32_t state = x * 747796405u + 2891336453u;
    const std::uint32_t word = ((state >> ((state >> 28) + 4u)) ^ state) * 277803737u;
    return (word >> 22) ^ word;
}

// hash(seed, step, ...): h = hash(first), then h = hash(h + next word) for each further word.
TRITUNE_INLINE std::uint32_t hash_next(std::uint32_t h, std::uint32_t word) { return hash_u32(h + word); }

}  // namespace tritune
