"""adamw: Adam with decoupled weight decay (Loshchilov and Hutter, 2019), in torch's order of operations."""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray


def adamw(
    parameters: FloatArray, grads: FloatArray, m: FloatArray, v: FloatArray, settings: FloatArray, state: FloatArray
) -> None:
    """One step in place on flat [n] buffers, unless state (of global_norm) says that the step is skipped; then grads
    = 0."""
    lr, beta1, beta2, eps, weight_decay = settings[:5]
    if state[2]:
        g = grads * state[1]
        m *= beta1
        m += settings[6] * g
        v *= beta2
        v += settings[7] * np.square(g)
        parameters *= 1 - lr * weight_decay
        parameters -= lr * (m / state[3]) / (np.sqrt(v / state[4]) + eps)
    grads[:] = 0
