// gather_rows and scatter_rows: rows of a batch to the head, and back; next_rows: the rows that follow drawn tokens.
#pragma once

#include "pool.h"

namespace tritune {

// out [count, columns] = x[index]; zeros where the index is not one of x's `rows`.
void gather_rows(Pool& pool, const float* x, const std::int32_t* index, float* out, Index count, Index rows, Index columns);

// out [rows, columns] = 0, then out[index[r]] = x[r] for the indices that are among its rows.
void scatter_rows(Pool& pool, const float* x, const std::int32_t* index, float* out, Index count, Index rows, Index columns);

// Of the first `count` rows those that are not spare (position -1): the token drawn[s], one position further on.
void next_rows(Pool& pool, const std::int32_t* drawn, std::int32_t* tokens, std::int32_t* positions, Index count);

}  // namespace tritune
