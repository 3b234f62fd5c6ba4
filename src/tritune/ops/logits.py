"""logits and logits_backward: the output head.

The table stays in its 16-bit format; chunks of rows are widened as they are used, so no float copy of it exists. A
table in int8 (``--head int8``) has a scale for each row v, which stands for ``scales[v] * table[v]``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritune.ops.arrays import FloatArray, widen

CHUNK = 4096
"""Table rows widened at a time."""


def logits(x: FloatArray, table: NDArray[np.generic], scales: NDArray[np.float32] | None = None) -> FloatArray:
    """[R, V] of x [R, D] and table [V, D], times scales [V]."""
    out = np.empty((x.shape[0], table.shape[0]), x.dtype)
    for start in range(0, table.shape[0], CHUNK):
        rows = slice(start, start + CHUNK)
        out[:, rows] = x @ widen(table[rows], x.dtype).T
    return out if scales is None else out * scales.astype(x.dtype)


def logits_backward(
    dlogits: FloatArray, table: NDArray[np.generic], scales: NDArray[np.float32] | None = None
) -> FloatArray:
    """dx [R, D] of dlogits [R, V]."""
    dx = np.zeros((dlogits.shape[0], table.shape[1]), dlogits.dtype)
    if scales is not None:
        dlogits = dlogits * scales.astype(dlogits.dtype)
    for start in range(0, table.shape[0], CHUNK):
        rows = slice(start, start + CHUNK)
        dx += dlogits[:, rows] @ widen(table[rows], dlogits.dtype)
    return dx
