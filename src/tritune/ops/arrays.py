"""Array types of the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.integer[Any]]
BoolArray = NDArray[np.bool_]


def widen(table: NDArray[np.generic], dtype: np.dtype[Any]) -> FloatArray:
    """Rows of an f32, f16 or (raw uint16) bf16 table as floats of ``dtype``; exact for 16-bit formats.

    A bfloat16 is the upper half of a float32, so a shift by 16 bits expands it.
    """
    if table.dtype == np.uint16:
        table = (table.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return table.astype(dtype, copy=False)
