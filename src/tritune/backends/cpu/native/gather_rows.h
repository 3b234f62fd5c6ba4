// gather_rows and scatter_rows: rows of a batch to the head, and back.
#pragma once

#include "pool.h"

namespace tritune {

// out [count, columns] = x[index]; zeros where the index is not one of x's `rows`.
void gather_rows(Pool& pool, const float* x, const std::int32_t* index, float* out, Index count, Index rows, Index columns);

// out [rows, columns] = 0, then out[index[r]] = x[r] for the indices that are among its rows.
void scatter_rows(Pool& pool, const float* x, const std::int32_t* index, float* out, Index count, Index rows, Index columns);

}  // namespace tritune
