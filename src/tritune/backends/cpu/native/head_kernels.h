// Kernels of the output head for one instruction set: see head_kernels.inc.
#pragma once

#include "common.h"

namespace tritune {

// Storage of a table: see vectors.h. The numbers travel from Python.
inline constexpr int kNumKinds = 4;

inline constexpr Index kFewRows = 4;        // rows of x that logits takes in one pass over the table without packing it
inline constexpr Index kChunk = 4096;       // columns of logits that cross_entropy treats as one piece
inline constexpr Index kPanelDepth = 256;   // columns of the table that are transposed at a time
inline constexpr Index kBackRows = 128;     // rows of the table that logits_backward widens at a time
inline constexpr Index kBackColumns = 640;  // and columns
inline constexpr Index kBackStride =
    656;  // of what is widened: an odd number of cache lines, so that columns spread out

struct HeadKernels {
    Index lane;  // floats of a vector
    Index tile;  // table rows that logits_panel takes at a time

    // x [columns] in the order in which few_rows reads it, zero up to a multiple of 2 * lane.
    void (*prepare[kNumKinds])(const float* x, Index columns, float* prepared);
    // The products of int8 rows lack their scales, which `backward` takes: [V], null for other kinds.
    //
    // out[r * ldo + v] for table rows v in [begin, end) and `rows` <= kFewRows prepared rows of x, `ldx` apart.
    void (*few_rows[kNumKinds])(const void* table, Index columns, const float* prepared, Index ldx, Index rows,
                                float* out, Index ldo, Index begin, Index end);
    // out[r * ldo + v] for table rows [begin, end) (at most `tile`) and any number of rows of x; panel: kPanelDepth * tile
    // floats; sums: rows * tile floats.
    void (*panel[kNumKinds])(const void* table, Index columns, const float* x, Index rows, float* out, Index ldo,
                             Index begin, Index end, float* panel, float* sums);
    // dx[r, begin … end) for all rows r; begin is a multiple of the lane. widened: kBackRows * kBackStride floats;
    // sums: rows * kBackStride floats.
    void (*backward[kNumKinds])(const float* dlogits, const void* table, const float* scales, float* dx, Index rows,
                                Index vocabulary, Index columns, Index begin, Index end, float* widened, float* sums);

    // Highest of z[0 … n) and Σ exp(z - highest).
    void (*highest_and_sum)(const float* z, Index n, float* highest, float* sum);
    // z = factor * exp(z - highest)
    void (*softmax)(float* z, Index n, float highest, float factor);
};

const HeadKernels& head_kernels(Isa isa);

}  // namespace tritune
