// What this machine can do at most, for benchmarks: multiply-adds and bytes a second on all threads of a pool.
#pragma once

#include "pool.h"

namespace tritune {

double measure_fma(Pool& pool, double seconds);                                           // float32 multiply-adds
double measure_dot(Pool& pool, double seconds);                                           // 8-bit multiply-adds
double measure_read(Pool& pool, const std::uint8_t* bytes, Index count, double seconds);  // bytes read

}  // namespace tritune
