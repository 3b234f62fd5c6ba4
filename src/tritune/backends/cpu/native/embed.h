// embed: rows of a table for token ids.
#pragma once

#include "pool.h"

namespace tritune {

// x [count, columns] = table[tokens]; an id outside of the table gives a row of zeros. format: rows_kernels.h.
void embed(Pool& pool, const std::int32_t* tokens, const std::uint8_t* table, int format, float* x, Index count, Index rows,
           Index columns);

}  // namespace tritune
