"""cross_entropy: the negative log-likelihood of each row's target, and its gradient from given coefficients."""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray, IntArray


def cross_entropy(logits: FloatArray, targets: IntArray) -> FloatArray:
    """nll [R] = logsumexp(logits[r]) - logits[r, targets[r]]; 0 where the target is -1."""
    nll = np.zeros(len(targets), logits.dtype)
    used = np.flatnonzero(targets >= 0)
    rows = logits[used]
    top = rows.max(-1, keepdims=True)
    lse = np.log(np.exp(rows - top).sum(-1)) + top[:, 0]
    nll[used] = lse - rows[np.arange(len(used)), targets[used]]
    return nll


def cross_entropy_backward(logits: FloatArray, targets: IntArray, coefficients: FloatArray) -> FloatArray:
    """dlogits [R, V] = coefficients[r] * (softmax - onehot), of the loss Σ coefficients[r] * nll[r]; 0 where the
    target is -1."""
    grad = np.zeros_like(logits)
    used = np.flatnonzero(targets >= 0)
    rows = np.exp(logits[used] - logits[used].max(-1, keepdims=True))
    rows /= rows.sum(-1, keepdims=True)
    rows[np.arange(len(used)), targets[used]] -= 1
    grad[used] = rows * coefficients[used, None]
    return grad
