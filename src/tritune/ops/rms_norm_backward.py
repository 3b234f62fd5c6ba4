"""rms_norm_backward: the gradient of rms_norm with respect to its input.

With r = 1 / sqrt(mean(x²) + eps) and d = dy * gain:  dx = r * d - x * r³ * mean(d * x).
The int8 rounding that follows the norm is passed straight through (dx̂/dx = 1), so it does not appear here.
"""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray


def rms_norm_backward(x: FloatArray, gain: FloatArray, eps: float, dy: FloatArray) -> FloatArray:
    """dx [T, D], given x and dy [T, D] and gain [D]."""
    r = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + x.dtype.type(eps))
    d = dy * gain
    return r * d - x * (r**3 * np.mean(d * x, axis=-1, keepdims=True))
