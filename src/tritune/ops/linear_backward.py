"""linear_backward: the gradients of linear, with the straight-through estimator at the int8 rounding.

dx = (dy * weight_scale) W + dropout(A^T down_grad)
down_grad[t, part * r + j] = multiplier[t] * lora_scale[part] * Σ_n dy[t, n] * B[n, j]      (n in the part)
dB[n, j] += Σ_t multiplier[t] * lora_scale[part(n)] * dy[t, n] * down[t, part(n) * r + j]
dA += down_gradᵀ dropout(x)
"""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray, IntArray
from tritune.ops.linear import slots_of


def ternary_backward(dy: FloatArray, weight: FloatArray, weight_scale: FloatArray) -> FloatArray:
    """dx [T, K] of the base branch; weight [N, K] in {-1, 0, 1}, weight_scale [N]."""
    return (dy * weight_scale) @ weight


def lora_down_grad(
    dy: FloatArray, b: FloatArray, scale: FloatArray, slot: IntArray, multiplier: FloatArray, parts: tuple[int, ...]
) -> FloatArray:
    """The gradient [T, P * r] with respect to A x; zero in rows without an adapter."""
    rank = b.shape[2]
    grad = np.zeros((dy.shape[0], len(parts) * rank), dy.dtype)
    for entry, rows in slots_of(slot):
        start = 0
        for part, size in enumerate(parts):
            factor = multiplier[rows] * scale[entry, part]
            part_dy = dy[rows, start : start + size] * factor[:, None]
            grad[rows, part * rank : (part + 1) * rank] = part_dy @ b[entry, start : start + size]
            start += size
    return grad


def lora_b_grad(
    dy: FloatArray, down: FloatArray, scale: FloatArray, slot: IntArray, multiplier: FloatArray, parts: tuple[int, ...]
) -> FloatArray:
    """dB [N, r] of the pool's only entry; scale [1, P]."""
    rank = down.shape[1] // len(parts)
    factor = np.where(slot > 0, multiplier, 0).astype(dy.dtype)
    grads: list[FloatArray] = []
    start = 0
    for part, size in enumerate(parts):
        u = down[:, part * rank : (part + 1) * rank] * (factor * scale[0, part])[:, None]
        grads.append(dy[:, start : start + size].T @ u)
        start += size
    return np.concatenate(grads)


def lora_a_grad(down_grad: FloatArray, x: FloatArray) -> FloatArray:
    """dA [P * r, K] of the pool's only entry; x [T, K] is the input after dropout."""
    return down_grad.T @ x


def lora_dx(down_grad: FloatArray, a: FloatArray, slot: IntArray) -> FloatArray:
    """What reaches the (dropped-out) input of the LoRA branch, [T, K]; a [pool, P * r, K]."""
    dx = np.zeros((down_grad.shape[0], a.shape[2]), down_grad.dtype)
    for entry, rows in slots_of(slot):
        dx[rows] = down_grad[rows] @ a[entry]
    return dx
