"""linear: a frozen ternary product with a low-rank correction beside it.

    y = (Σ_k codes[t, k] * w[n, k]) / scales[t] * weight_scale[n]
      + multiplier[t] * lora_scale[slot, part(n)] * Σ_j B[slot][n, j] * (A[slot] · dropout(x))[t, part(n) * r + j]

The base branch sees the int8 codes, the LoRA branch the floats that they came from (LoRA: Hu et al., 2021).
Integer sums stay below 2²⁴ for K <= 131072, so float32 BLAS computes them exactly in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tritune.ops.arrays import FloatArray, IntArray


def ternary_product(
    x: FloatArray,
    codes: NDArray[np.int8] | None,
    scales: FloatArray | None,
    weight: FloatArray,
    weight_scale: FloatArray,
) -> FloatArray:
    """y [T, N] of weight [N, K] in {-1, 0, 1} (as floats) and weight_scale [N]; codes None: of x itself."""
    if codes is None or scales is None:
        return (x @ weight.T) * weight_scale
    return (codes.astype(weight.dtype) @ weight.T) / scales[:, None] * weight_scale


def slots_of(slot: IntArray) -> Iterator[tuple[int, slice | NDArray[np.intp]]]:
    """(pool entry, its rows) for each adapter in a batch; rows without one (slot 0) are left out.

    Rows that lie together come as a slice: no copy is made of them.
    """
    for value in np.unique(slot[slot > 0]):
        rows = np.flatnonzero(slot == value)
        together = rows[-1] - rows[0] + 1 == len(rows)
        yield int(value) - 1, slice(int(rows[0]), int(rows[-1]) + 1) if together else rows


def lora_down(x: FloatArray, a: FloatArray, slot: IntArray) -> FloatArray:
    """A x, [T, P * r], of x [T, K] and a [pool, P * r, K]; zero in rows without an adapter."""
    down = np.zeros((x.shape[0], a.shape[1]), x.dtype)
    for entry, rows in slots_of(slot):
        down[rows] = x[rows] @ a[entry].T
    return down


def lora_up(
    down: FloatArray, b: FloatArray, scale: FloatArray, slot: IntArray, multiplier: FloatArray, parts: tuple[int, ...]
) -> FloatArray:
    """The correction [T, N] of down [T, P * r] and b [pool, N, r]; scale [pool, P], multiplier [T]."""
    rank = b.shape[2]
    y = np.zeros((down.shape[0], b.shape[1]), down.dtype)
    for entry, rows in slots_of(slot):
        start = 0
        for part, size in enumerate(parts):
            factor = multiplier[rows] * scale[entry, part]
            u = down[rows, part * rank : (part + 1) * rank] * factor[:, None]
            y[rows, start : start + size] = u @ b[entry, start : start + size].T
            start += size
    return y
