"""embed: token ids to rows of the embedding table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritune.ops.arrays import FloatArray, IntArray, widen


def embed(tokens: IntArray, table: NDArray[np.generic], dtype: np.dtype[np.floating]) -> FloatArray:
    """x [T, D] = table[tokens]; table is f32, f16 or raw bf16 [V, D]."""
    return widen(table[tokens], dtype)
