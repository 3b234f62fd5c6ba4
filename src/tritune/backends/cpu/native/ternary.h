// Packed ternary matrices: 2 bits a weight, in lines of 64 bytes that serve every instruction set.
#pragma once

#include "pool.h"

namespace tritune {

// A line holds 16 rows x 16 columns of codes w + 1 in {0, 1, 2}: byte 4 * r + b has row r, and in its bits 2j, 2j + 1
// column 4j + b. So `(line >> 2j) & 3` is 16 rows x 4 columns of bytes, what a dot-product instruction takes.
// Line (i, j) of an [N, K] matrix is number i * ceil(K / 16) + j: the columns of 16 rows follow each other.
// Rows and columns beyond N and K have code 0, which adds nothing to a sum of codes.
inline constexpr Index kLineRows = 16;
inline constexpr Index kLineColumns = 16;
inline constexpr Index kLineBytes = 64;

inline constexpr Index ternary_bytes(Index rows, Index columns) {
    return ceil_div(rows, kLineRows) * ceil_div(columns, kLineColumns) * kLineBytes;
}

// Packs int8 [rows, columns] in {-1, 0, 1} as rows first_row ... of `lines`, which were zero; columns % 4 == 0.
void pack_ternary(Pool& pool, const std::int8_t* codes, Index rows, Index columns, Index first_row, std::uint8_t* lines);

// The opposite of pack_ternary.
void unpack_ternary(Pool& pool, const std::uint8_t* lines, Index rows, Index columns, Index first_row,
                    std::int8_t* codes);

}  // namespace tritune
