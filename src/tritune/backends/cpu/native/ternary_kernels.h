// The integer kernels of the ternary linear, one table for each instruction set.
//
// The right-hand side is a panel: `rows` int8 rows, four columns of each at a time: [columns / 4][rows][4], padded
// with zeros to a multiple of 16 columns. A token is one row (its int8 codes) or, where floats are multiplied, three:
// the limbs of a 24-bit integer, low to high. Sums are exact: those of codes 0, 1, 2, from which the caller subtracts
// the sum of the panel's row.
#pragma once

#include "common.h"
#include "isa.h"

namespace tritune {

inline constexpr Index kLimbs = 3;

struct TernaryKernels {
    Index panel_rows;  // most rows of a panel; a multiple of kLimbs
    Index tile_width;  // columns of an unpacked tile, a multiple of 16

    // sums i32 [rows, 16] of the 16 matrix rows in `count` lines, straight from the lines: for few rows.
    void (*multiply_lines)(const std::uint8_t* lines, Index count, const std::int8_t* panel, Index rows,
                           std::int32_t* sums);
    // A tile is bytes [count * 4][tile_width][4]: `count` lines of each of `blocks` groups of 16 matrix rows, the groups
    // `stride` lines apart; what lacks of the tile's width is left as it is.
    void (*unpack_rows)(const std::uint8_t* lines, Index stride, Index count, Index blocks, std::uint8_t* tile);
    // The same of the transposed matrix: the first index runs over `count` * 16 matrix rows by fours, the second over
    // the columns of `blocks` lines side by side. stride: lines from 16 matrix rows to the next.
    void (*unpack_columns)(const std::uint8_t* lines, Index stride, Index count, Index blocks, std::uint8_t* tile);
    // sums i32 [rows, tile_width] (+=, or = if `first`) of `steps` fours of a tile. next: as many bytes of the panel that
    // comes after this one, which are asked for meanwhile.
    void (*multiply_tile)(const std::uint8_t* tile, Index steps, const std::int8_t* panel, Index rows,
                          std::int32_t* sums, bool first, const std::int8_t* next);

    // Puts int8 [columns] into row `row` of a panel of `rows`; returns their sum.
    std::int32_t (*panel_codes)(const std::int8_t* codes, Index columns, Index row, Index rows, std::int8_t* panel);
    // Puts the limbs of f32 [columns] (times gain [columns], if given) into rows `row` to `row + 2`; sums [3]; returns
    // what a unit of the integer is worth, NaN where an element is not finite.
    float (*panel_floats)(const float* x, const float* gain, Index columns, Index row, Index rows, std::int8_t* panel,
                          std::int32_t* sums);

    // y [tokens, count] (= or +=) from sums [tokens * limbs, width]: minus the panel's row sums, times unit [tokens] and
    // row_scale [count] (null: 1).
    void (*finish)(const std::int32_t* sums, Index width, const std::int32_t* row_sums, const float* unit,
                   const float* row_scale, Index tokens, Index limbs, Index count, float* y, Index stride,
                   bool accumulate);
};

const TernaryKernels& ternary_kernels(Isa isa);

}  // namespace tritune
