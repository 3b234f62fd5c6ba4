"""The gradient of the whole loss equals the slope of the loss, in float64.

With the rounding off, and with it on: there the loss is a staircase, and what the gradient belongs to (the
straight-through estimator) is the surrogate in which each rounded activation is x plus the constant that rounding added
to it at this point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.harness import Ours, batch_of, example, random_adapter
from oracles.taped import Arguments, Taped
from tiny_models import make_hf
from tritune.backends.base import Backend
from tritune.lora import LoRAConfig
from tritune.models.training_state import TrainingState

STEP = 1e-5
TOLERANCE = 1e-6
LORA = LoRAConfig(rank=3, alpha=6, rank_pattern={"q_proj": 2})
KINDS: dict[str, dict[str, Any]] = {
    "bitnet relu2": {"hidden": 16, "ffn": 20, "vocab": 37, "heads": 2, "kv_heads": 1},
    "bitnet silu": {"hidden": 16, "ffn": 20, "vocab": 37, "heads": 2, "kv_heads": 1, "act": "silu"},
    "llama": {"model_type": "llama", "hidden": 16, "ffn": 20, "vocab": 37, "head_dim": 4, "heads": 2, "kv_heads": 2},
}


@dataclass
class Surrogate:
    """A hook for ``linear``: the ternary product of x plus a constant, the LoRA branch of x."""

    constants: list[Any] = field(default_factory=list[Any])
    on: bool = False
    _next: int = 0

    def __call__(self, backend: Backend, arguments: Arguments, run: Callable[[], None]) -> None:
        x, codes = arguments["x"].array, arguments["codes"].array
        if not self.on:
            self.constants.append(codes / arguments["scales"].array[:, None] - x)
            return run()
        shifted = backend.upload(x + self.constants[self._next % len(self.constants)])
        self._next += 1
        values = {k: v for k, v in arguments.items() if k != "self"} | {"codes": None, "scales": None}
        out, bare = (backend.empty(arguments["y"].shape) for _ in range(2))
        backend.linear(**(values | {"y": out, "accumulate": False}))
        backend.linear(**(values | {"y": bare, "accumulate": False, "lora": None, "dropout": None}))
        backend.linear(**(values | {"x": shifted, "lora": None, "dropout": None}))
        arguments["y"].array[...] += out.array - bare.array  # type: ignore[attr-defined]
        return None


def loss_of(state: TrainingState, batch: Any) -> float:
    state.totals.array[...] = 0  # type: ignore[attr-defined]
    state.forward_loss(batch)
    return float(state.totals.array[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize("rounding", ["off", "on"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss(kind: str, rounding: str, reference: Backend, tmp_path: Path) -> None:
    surrogate = Surrogate()
    backend: Any = Taped(reference, {"linear": surrogate}) if rounding == "on" else reference
    ours = Ours(backend, make_hf(tmp_path, **KINDS[kind]).path, "float" if rounding == "off" else "int8")
    adapter = random_adapter(ours.config, LORA, b_std=0.3)
    batch = batch_of([example(ours.config.vocab_size, n, n) for n in (6, 5)], 13)

    state = ours.training(adapter, 13, recompute=False)
    state.forward_backward(batch)
    loss, _, gradients = ours.sums(state, adapter)
    surrogate.on = True
    assert loss_of(state, batch) == pytest.approx(loss, rel=1e-12)

    rng = np.random.default_rng(0)
    parameters = state.parameters.array  # type: ignore[attr-defined]
    for name, at in adapter.tensors(parameters).items():
        size = np.linalg.norm(gradients[name])
        assert size > 1e-6, name
        for direction in (gradients[name], rng.normal(size=at.shape)):
            move = direction / np.linalg.norm(direction)
            start = at.copy()
            at[...] = start + STEP * move
            above = loss_of(state, batch)
            at[...] = start - STEP * move
            slope = (above - loss_of(state, batch)) / (2 * STEP)
            at[...] = start
            assert slope == pytest.approx(np.sum(gradients[name] * move), abs=TOLERANCE * size + 1e-8), name


def test_rounded_loss_is_a_staircase(reference: Backend, tmp_path: Path) -> None:
    """Why the surrogate: the slope of the rounded loss itself is something else."""
    ours = Ours(reference, make_hf(tmp_path, **KINDS["bitnet relu2"]).path, "int8")
    adapter = random_adapter(ours.config, LORA, b_std=0.3)
    item = example(ours.config.vocab_size, 9)
    state = ours.training(adapter, 9)
    state.forward_backward(batch_of([item], 9))
    _, _, gradients = ours.sums(state, adapter)
    name = next(name for name in gradients if "layers.0" in name)
    at = adapter.tensors(state.parameters.array)[name]  # type: ignore[attr-defined]
    move = gradients[name] / np.linalg.norm(gradients[name])
    before = loss_of(state, batch_of([item], 9))
    at += STEP * move
    slope = (loss_of(state, batch_of([item], 9)) - before) / STEP
    assert slope != pytest.approx(np.linalg.norm(gradients[name]), rel=1e-2)
