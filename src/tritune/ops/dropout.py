"""Dropout on the input of the LoRA branch.

Element e = t * K + k of the input of linear ``module`` is kept in step ``step`` where
hash_words(seed, step, module, e) >= floor(rate * 2^32), and then multiplied by 1 / (1 - rate).
The mask is a function of these numbers alone, so a recomputed forward repeats it.
"""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray
from tritune.ops.hashing import hash_words


def dropout_threshold(rate: float) -> int:
    """The hash below which an element is dropped; rate in [0, 1)."""
    return int(rate * 2.0**32)


def dropout(x: FloatArray, rate: float, module: int, seed: int, step: int) -> FloatArray:
    """x [T, K] with its dropped elements set to zero and the others scaled. It is linear in x, so it is its own
    backward."""
    elements = np.arange(x.size, dtype=np.uint32).reshape(x.shape)
    words = hash_words(np.uint32(seed), np.uint32(step), np.uint32(module), elements)  # type: ignore[arg-type]
    keep = words >= np.uint32(dropout_threshold(rate))
    return np.where(keep, x * x.dtype.type(1.0 / (1.0 - rate)), x.dtype.type(0))
