"""gather_rows and scatter_rows: from the rows of a batch to the rows that the head needs, and back."""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray, IntArray


def gather_rows(x: FloatArray, index: IntArray) -> FloatArray:
    """x[index] for index [R]; a row of zeros where index is -1."""
    return np.where((index >= 0)[:, None], x[np.maximum(index, 0)], x.dtype.type(0))


def scatter_rows(x: FloatArray, index: IntArray, count: int) -> FloatArray:
    """[count, D] of zeros with row index[r] = x[r] (each index at most once); -1 is left out."""
    out = np.zeros((count, x.shape[1]), x.dtype)
    used = index >= 0
    out[index[used]] = x[used]
    return out
