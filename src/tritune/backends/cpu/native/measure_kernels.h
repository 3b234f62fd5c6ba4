// Loops that do nothing but what limits the others: see measure_kernels.inc.
#pragma once

#include "common.h"

namespace tritune {

struct MeasureKernels {
    Index fma_per_round, dot_per_round;  // multiply-adds of a round
    float (*fma)(Index rounds);
    std::int32_t (*dot)(Index rounds);
    std::int32_t (*read)(const std::uint8_t* bytes, Index count);  // a multiple of 256
};

}  // namespace tritune
