"""Noise on the embeddings that are trained on: NEFTune (Jain et al., 2023)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritune.data.batches import Batch

STREAM = 0x6E6F6973
"""Keeps these random numbers apart from others of the same seed."""


def neftune_noise(batch: Batch, shape: tuple[int, ...], alpha: float, seed: int, number: int) -> NDArray[np.float32]:
    """Float32 ``shape`` [rows, D]: uniform in ± alpha / √(L · D) for a sequence of L tokens, 0 in spare rows.

    A function of the seed and the micro-batch's number, so a resumed run adds what a straight one would.
    """
    width = shape[1]
    lengths = np.diff(batch.q_start)
    sizes = np.repeat(alpha / np.sqrt(lengths * width), lengths).astype(np.float32)
    noise = np.zeros(shape, np.float32)
    values = np.random.default_rng([seed, STREAM, number]).random((len(sizes), width), np.float32)
    noise[: len(sizes)] = (2 * values - 1) * sizes[:, None]
    return noise
