"""glu: the gated linear unit of the feed-forward block, z = act(gate) * up (Shazeer, 2020).

act is relu² (BitNet b1.58 2B-4T) or silu, as the model's config says.
"""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray

ACTIVATIONS = ("relu2", "silu")


def sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)), without overflow: tanh saturates where exp would not."""
    half = x.dtype.type(0.5)
    return half * (np.tanh(half * x) + 1)


def activate(gate: FloatArray, activation: str) -> FloatArray:
    """act(gate)."""
    if activation == "relu2":
        return np.square(np.maximum(gate, 0))
    return gate * sigmoid(gate)


def activate_slope(gate: FloatArray, activation: str) -> FloatArray:
    """d act(gate) / d gate."""
    if activation == "relu2":
        return 2 * np.maximum(gate, 0)
    s = sigmoid(gate)
    return s * (1 + gate * (1 - s))


def glu(gate_up: FloatArray, activation: str) -> FloatArray:
    """z [T, F] of gate_up [T, 2F], the gate in the first half."""
    gate, up = np.split(gate_up, 2, axis=-1)
    return activate(gate, activation) * up
