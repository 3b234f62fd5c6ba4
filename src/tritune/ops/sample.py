"""sample: draw a token from one sequence's logits.

The warpers come in transformers' order: repetition penalty (Keskar et al., 2019), allowed set, temperature, top-k,
top-p (Holtzman et al., 2020), min-p (Nguyen et al., 2024). Each keeps the tokens at or above a threshold of the
logit (so ties at it are all kept). The draw is a Gumbel-max: the argmax of logit + gumbel(hash(seed, draw, token)) over
the kept tokens, which needs no order and no running sum, and depends on nothing but the sequence itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tritune.ops.arrays import BoolArray, FloatArray
from tritune.ops.hashing import hash_words


@dataclass(frozen=True)
class SampleSettings:
    """How to draw. temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off."""

    temperature: float
    top_p: float
    min_p: float
    repetition_penalty: float
    top_k: int
    seed: int


def penalise(logits: FloatArray, seen: BoolArray, penalty: float) -> FloatArray:
    """Logits of seen tokens divided by the penalty where positive, multiplied by it where negative."""
    factor = logits.dtype.type(penalty)
    return np.where(seen, np.where(logits > 0, logits / factor, logits * factor), logits)


def top_p_threshold(z: FloatArray, kept: BoolArray, top_p: float) -> FloatArray:
    """The logit of the last token of the smallest set of most probable kept tokens whose mass reaches top_p."""
    order = np.sort(z[kept])[::-1]
    mass = np.cumsum(np.exp(order - order[0]))
    return order[min(int(np.searchsorted(mass, top_p * mass[-1])), len(order) - 1)]


def gumbel(seed: int, draw: int, count: int) -> FloatArray:
    """count standard Gumbel numbers (float64) of a draw: -log(-log(u)), u from the hash's upper 24 bits."""
    words = hash_words(np.uint32(seed), np.uint32(draw), np.arange(count, dtype=np.uint32))  # type: ignore[arg-type]
    u = ((words >> np.uint32(8)).astype(np.float64) + 0.5) / 2.0**24
    return -np.log(-np.log(u))


def sample(
    logits: FloatArray, settings: SampleSettings, draw: int, seen: BoolArray, allowed: BoolArray | None
) -> tuple[int, float]:
    """(token, its log-probability in the unchanged logits [V]); seen and allowed are bool [V].

    Greedy takes the lowest of equal tokens. top-p's mass is of what top-k has kept.
    """
    top = logits.max()
    lse = np.log(np.exp(logits - top).sum()) + top
    z = penalise(logits, seen, settings.repetition_penalty)
    if allowed is not None:
        z = np.where(allowed, z, -np.inf)
    if settings.temperature > 0:
        z = z / z.dtype.type(settings.temperature)
        kept = np.isfinite(z)
        if 0 < settings.top_k < len(z):
            kept &= z >= np.partition(z, -settings.top_k)[-settings.top_k]
        if settings.top_p < 1:
            kept &= z >= top_p_threshold(z, kept, settings.top_p)
        if settings.min_p > 0:
            kept &= z >= z.max() + np.log(settings.min_p)
        z = np.where(kept, z + gumbel(settings.seed, draw, len(z)), -np.inf)
    token = int(np.argmax(z))
    return token, float(logits[token] - lse)
