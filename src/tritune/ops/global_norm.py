"""global_norm: the norm of an optimizer step's gradient, the clip factor and the finite check, all on the device.

The gradient buffer holds sums over trained tokens; dividing by their number here makes accumulation over micro-batches
equal to one large batch. A step whose norm or loss is not finite, or which trained no token, is skipped and counted.
"""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray

CLIP_EPS = 1e-6
"""Added to the norm before dividing, as torch's clip_grad_norm_ does."""


def global_norm(grads: FloatArray, totals: FloatArray, settings: FloatArray, state: FloatArray) -> None:
    """Update state [8] and totals [4] in place (their columns: backends/base.py); grads [n], settings [8]."""
    beta1, beta2, clip = (float(settings[i]) for i in (1, 2, 5))
    count = float(totals[1])
    with np.errstate(all="ignore"):
        norm = float(np.sqrt(np.sum(np.square(grads)))) / max(count, 1.0)
    finite = bool(np.isfinite(norm) and np.isfinite(totals[0]) and count > 0)
    state[0], state[2] = norm, finite
    if finite:
        state[1] = (min(1.0, clip / (norm + CLIP_EPS)) if clip > 0 else 1.0) / count
        state[3] = beta1 * state[3] + settings[6]  # 1 - beta^t without the cancellation of forming beta^t first
        state[4] = beta2 * state[4] + settings[7]
        state[6] = 0
        state[7] += 1
        totals[2:4] += totals[0:2]
    else:
        state[1] = 0
        state[5:7] += 1
    totals[0:2] = 0
