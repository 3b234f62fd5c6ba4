// copy and zero: bytes.
#pragma once

#include "pool.h"

namespace tritune {

void copy(Pool& pool, const std::uint8_t* source, std::uint8_t* target, Index bytes);
void zero(Pool& pool, std::uint8_t* target, Index bytes);

}  // namespace tritune
