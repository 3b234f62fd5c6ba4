"""glu_norm_quant: the GLU, then (where the model has a sub-norm) RMS norm, then int8 quantisation."""

from __future__ import annotations

from tritune.ops.arrays import FloatArray
from tritune.ops.glu import glu
from tritune.ops.rms_norm_quant import rms_norm


def glu_norm(gate_up: FloatArray, activation: str, gain: FloatArray | None, eps: float) -> FloatArray:
    """normed [T, F] of gate_up [T, 2F]; gain None: z itself. Quantised by ops/rms_norm_quant.py's quantise."""
    z = glu(gate_up, activation)
    return z if gain is None else rms_norm(z, gain, eps)
