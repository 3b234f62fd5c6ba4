"""rms_norm_quant: RMS norm (Zhang and Sennrich, 2019) and BitNet b1.58's int8 quantisation of activations.

normed = x / sqrt(mean(x²) + eps) * gain
scale  = 127 / max(max|normed|, 1e-5)                    per row
codes  = clamp(round(normed * scale), -128, 127)         round half to even
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritune.ops.arrays import FloatArray

QUANT_FLOOR = 1e-5
"""Smallest absmax of a row: a row of zeros gets a finite scale."""


def rms_norm(x: FloatArray, gain: FloatArray, eps: float) -> FloatArray:
    """Normed rows of x [T, D] times gain [D]."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    return x * (1 / np.sqrt(mean_square + x.dtype.type(eps))) * gain


def quantise(x: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Codes int8 [T, D] and scales [T] of x [T, D]; x is about codes / scales[:, None]."""
    absmax = np.maximum(np.max(np.abs(x), axis=-1), x.dtype.type(QUANT_FLOOR))
    scales = x.dtype.type(127) / absmax
    codes = np.clip(np.rint(x * scales[:, None]), -128, 127).astype(np.int8)
    return codes, scales
