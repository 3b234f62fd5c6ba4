"""Way c: free running, tritune is no further from transformers than 1.5 × transformers (eager) is from itself (sdpa).

Rounding to int8 amplifies the noise of float sums, so two correct programs differ by far more than 1e-4 on a model of
some depth. A flipped code spreads to all later rows: the longer the input and the deeper the model, the less the
distance depends on which code flipped first. Short inputs of small models have gaps of 0 as well as of 0.02.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from oracles.harness import Example, Floats, Gradients, Ours, error, example, random_adapter
from oracles.reference import Reference
from tritune.assets import BUILTIN_MODEL
from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend
from tritune.lora import Adapter, LoRAConfig

MARGIN = 1.5
LARGER: dict[str, dict[str, Any]] = {
    "bitnet": {"hidden": 256, "layers": 20, "heads": 8, "ffn": 256, "vocab": 320},
    "llama bitlinear": {
        "model_type": "llama", "linear_class": "bitlinear", "hidden": 256, "layers": 20, "heads": 4, "head_dim": 48,
        "ffn": 320, "vocab": 320,
    },
}  # fmt: skip
INPUTS = 3  # of a single one the gap and the distance scatter by a half, with the addresses of torch's buffers too
LENGTH = 256


def flat(results: Sequence[tuple[Floats, Gradients]]) -> tuple[Floats, Floats]:
    """All logits, and all gradients, as one vector each."""
    logits = np.concatenate([logits.ravel() for logits, _ in results])
    return logits, np.concatenate([g.ravel() for _, grads in results for g in grads.values()])


def run(side: Ours | Reference, items: Sequence[Example], adapter: Adapter) -> tuple[Floats, Floats]:
    """All logits and gradients of one side."""
    return flat([(side.logits(i.ids, adapter), side.loss_and_gradients([i], adapter)[1]) for i in items])


@pytest.mark.parametrize("kind", LARGER)
def test_random_model(kind: str, backend: Backend, make) -> None:
    directory, eager = make(**LARGER[kind])
    _, sdpa = make("sdpa", **LARGER[kind])
    check(Ours(backend, directory), eager, sdpa)


def test_built_in_model(make) -> None:
    _, eager = make(path=BUILTIN_MODEL)
    _, sdpa = make("sdpa", path=BUILTIN_MODEL)
    check(Ours(NumpyBackend(), BUILTIN_MODEL), eager, sdpa)


def check(ours: Ours, eager: Reference, sdpa: Reference) -> None:
    adapter = random_adapter(ours.config, LoRAConfig(rank=4, alpha=8))
    items = [example(ours.config.vocab_size, LENGTH, seed) for seed in range(INPUTS)]
    found, first, second = (run(side, items, adapter) for side in (ours, eager, sdpa))
    for mine, one, other in zip(found, first, second, strict=True):
        gap = error(other, one)
        distance = min(error(mine, one), error(mine, other))
        assert 0 < gap < 0.1
        assert distance <= MARGIN * gap
