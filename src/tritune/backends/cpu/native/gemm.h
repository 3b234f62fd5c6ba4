// A float32 matrix product on what lies in the first caches: C [m, n] (= or +=) A [m, k] · B [k, n].
//
// The outer-product form: a tile of C stays in registers, a row of B is loaded, elements of A are broadcast. Include it
// in *_kernels.inc only. Every element of C is summed over k in order, whatever the tile it falls into.
#pragma once

#include "vectors.h"

namespace tritune {
namespace TRITUNE_ISA {

#if defined(__AVX512F__)
inline constexpr int MR = 12, NV = 2;  // 24 sums, 2 of B, of 32 registers
#elif defined(__aarch64__)
inline constexpr int MR = 6, NV = 4;
#else
inline constexpr int MR = 6, NV = 2;  // 12 sums, 2 of B, 1 of A, of 16 registers
#endif
inline constexpr int NR = NV * W;  // columns of a tile

// A by strides (row_a, step_a), so that Aᵀ is as good as A.
struct Left {
    const float* data;
    Index row, step;
};

template <int M, int N>
TRITUNE_INLINE void gemm_tile(Index k, Left a, const float* b, Index ldb, float* c, Index ldc, bool add) {
    F sums[M][N];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) sums[i][j] = add ? load(c + i * ldc + j * W) : F{};
    }
    const float* left = a.data;
    for (Index t = 0; t < k; ++t, left += a.step, b += ldb) {
        F right[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) right[j] = load(b + j * W);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            const F x = splat(left[i * a.row]);
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) sums[i][j] = sums[i][j] + x * right[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) store(c + i * ldc + j * W, sums[i][j]);
    }
}

template <int N, int M = MR>
inline void gemm_rows(Index m, Index k, Left a, const float* b, Index ldb, float* c, Index ldc, bool add) {
    if (m == M) {
        gemm_tile<M, N>(k, a, b, ldb, c, ldc, add);
    } else if constexpr (M > 1) {
        gemm_rows<N, M - 1>(m, k, a, b, ldb, c, ldc, add);
    }
}

// n is a multiple of W: rows of B and C are padded to it. A strip of B stays in the first cache while A goes by.
inline void gemm(Index m, Index n, Index k, Left a, const float* b, Index ldb, float* c, Index ldc, bool add) {
    Index j = 0;
    for (; j + NR <= n; j += NR) {
        for (Index i = 0; i < m; i += MR) {
            const Left part{a.data + i * a.row, a.row, a.step};
            gemm_rows<NV>(m - i < MR ? m - i : MR, k, part, b + j, ldb, c + i * ldc + j, ldc, add);
        }
    }
    for (; j < n; j += W) {
        for (Index i = 0; i < m; i += MR) {
            const Left part{a.data + i * a.row, a.row, a.step};
            gemm_rows<1>(m - i < MR ? m - i : MR, k, part, b + j, ldb, c + i * ldc + j, ldc, add);
        }
    }
}

// target [columns, ldt] = the transpose of rows 0 … count - 1, as floats times scale; row_of(j) is where row j starts.
// Columns count … width - 1 become 0; width is a multiple of W, at most ldt.
template <Kind kind, class RowOf>
TRITUNE_INLINE void transpose_rows(RowOf row_of, Index count, Index columns, float scale, float* target, Index ldt,
                                   Index width) {
    for (Index j = 0; j < width; j += W) {
        const typename Stored<kind>::Type* rows[W];
        for (Index r = 0; r < W; ++r) rows[r] = j + r < count ? row_of(j + r) : nullptr;
        const bool whole = j + W <= count;
        for (Index i = 0; i < columns; i += W) {
            F block[W];
            const Index present = columns - i < W ? columns - i : W;
            if (whole && present == W) {
#pragma GCC unroll 16
                for (int r = 0; r < W; ++r) block[r] = Stored<kind>::load(rows[r] + i) * scale;
            } else {
                for (int r = 0; r < W; ++r)
                    block[r] = rows[r] ? Stored<kind>::load_some(rows[r] + i, present) * scale : F{};
            }
            transpose(block);
            for (Index r = 0; r < present; ++r) store(target + (i + r) * ldt + j, block[r]);
        }
    }
}

// target [count, ldt] = rows as floats times scale; columns up to width (a multiple of W) become 0.
template <Kind kind, class RowOf>
TRITUNE_INLINE void widen_rows(RowOf row_of, Index count, Index columns, float scale, float* target, Index ldt,
                               Index width) {
    for (Index r = 0; r < count; ++r) {
        const typename Stored<kind>::Type* row = row_of(r);
        Index i = 0;
        for (; i + W <= columns; i += W) store(target + r * ldt + i, Stored<kind>::load(row + i) * scale);
        if (i < columns) store(target + r * ldt + i, Stored<kind>::load_some(row + i, columns - i) * scale), i += W;
        for (; i < width; i += W) store(target + r * ldt + i, F{});
    }
}

}  // namespace TRITUNE_ISA
}  // namespace tritune
