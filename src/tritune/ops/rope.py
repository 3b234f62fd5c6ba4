"""rope: rotary position embedding (Su et al., 2021), half-split ("NeoX") pairs.

Pair (i, i + d/2) of each head is rotated by the angle position * theta^(-2i/d). The table f [positions, d] holds the
cosines in columns 0 … d/2 - 1 and the sines in columns d/2 … d - 1: a GPU's own sin is too coarse for large angles.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritune.ops.arrays import FloatArray, IntArray


def rope_table(positions: int, head_dim: int, theta: float) -> NDArray[np.float32]:
    """The table float32 [positions, head_dim]; angles in float32, as transformers computes them."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inverse = (np.float32(1) / np.power(np.float32(theta), exponents)).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def rotate(x: FloatArray, table: FloatArray, positions: IntArray, inverse: bool = False) -> FloatArray:
    """x [T, heads, d] rotated by its rows' positions [T]; spare rows (position -1) come back as they are."""
    half = x.shape[-1] // 2
    used = positions >= 0
    angles = table[np.where(used, positions, 0)].astype(x.dtype, copy=False)[:, None, :]
    cos, sin = angles[..., :half], angles[..., half:]
    if inverse:
        sin = -sin
    low, high = x[..., :half], x[..., half:]
    rotated = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return np.where(used[:, None, None], rotated, x)
