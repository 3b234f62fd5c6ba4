"""glu_backward: the gradient through the sub-norm (if any) and the GLU."""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray
from tritune.ops.glu import activate, activate_slope
from tritune.ops.rms_norm_backward import rms_norm_backward


def glu_backward(
    gate_up: FloatArray, activation: str, gain: FloatArray | None, eps: float, dy: FloatArray
) -> FloatArray:
    """dgate_up [T, 2F], given dy [T, F]; z and its norm are recomputed from gate_up."""
    gate, up = np.split(gate_up, 2, axis=-1)
    act = activate(gate, activation)
    dz = dy if gain is None else rms_norm_backward(act * up, gain, eps, dy)
    return np.concatenate([dz * up * activate_slope(gate, activation), dz * act], axis=-1)
