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

// n is a multiple of W: rows of B and C are padded to it.
inline void gemm(Index m, Index n, Index k, Left a, const float* b, Index ldb, float* c, Index ldc, bool add) {
    for (Index i = 0; i < m; i += MR) {
        const Index rows = m - i < MR ? m - i : MR;
        const Left part{a.data + i * a.row, a.row, a.step};
        Index j = 0;
        for (; j + NR <= n; j += NR) gemm_rows<NV>(rows, k, part, b + j, ldb, c + i * ldc + j, ldc, add);
        for (; j < n; j += W) gemm_rows<1>(rows, k, part, b + j, ldb, c + i * ldc + j, ldc, add);
    }
}

// target [columns, ldt] = the transpose of rows [count, columns] of a table (row stride in elements), as floats times
// scale; columns count … width - 1 become 0. width is a multiple of W, at most ldt.
template <Kind kind>
inline void transpose_rows(const typename Stored<kind>::Type* rows, Index stride, Index count, Index columns, float scale,
                           float* target, Index ldt, Index width) {
    for (Index j = 0; j < width; j += W) {
        for (Index i = 0; i < columns; i += W) {
            F block[W];
            const Index present = columns - i < W ? columns - i : W;
#pragma GCC unroll 16
            for (int r = 0; r < W; ++r) {
                const auto* from = rows + (j + r) * stride + i;
                if (j + r >= count) {
                    block[r] = F{};
                } else {
                    block[r] = (present == W ? Stored<kind>::load(from) : Stored<kind>::load_some(from, present)) * scale;
                }
            }
            transpose(block);
            for (Index r = 0; r < present; ++r) store(target + (i + r) * ldt + j, block[r]);
        }
    }
}

// target [count, ldt] = rows as floats times scale; columns up to width (a multiple of W) become 0.
template <Kind kind>
inline void widen_rows(const typename Stored<kind>::Type* rows, Index stride, Index count, Index columns, float scale,
                       float* target, Index ldt, Index width) {
    for (Index r = 0; r < count; ++r) {
        for (Index i = 0; i < width; i += W) {
            const Index left = columns - i;
            const auto* from = rows + r * stride + i;
            const F x = left >= W ? Stored<kind>::load(from) : left > 0 ? Stored<kind>::load_some(from, left) : F{};
            store(target + r * ldt + i, x * scale);
        }
    }
}

}  // namespace TRITUNE_ISA
}  // namespace tritune
