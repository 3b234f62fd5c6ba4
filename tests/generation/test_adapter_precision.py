"""Adapters in f16 while text is generated: what that changes, and when it is not done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tiny_adapters import random_adapter
from tiny_chat import open_chat_model
from tritune.backends.base import Backend
from tritune.lora import AdapterPool, LoRAConfig
from tritune.models.block_buffers import Adapters

TOKENS = [5, 9, 2, 40, 77, 13, 8, 100, 31, 6, 64, 3]


def dtype_of(adapters: Adapters | None) -> str:
    assert isinstance(adapters, AdapterPool)
    return adapters.flat.dtype


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_logits_with_an_f16_adapter_are_near_those_with_f32(
    model_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    backend = request.getfixturevalue(device)
    if device == "cpu":
        backend = backend()
    else:
        monkeypatch.setattr(backend, "f16_adapters", True)  # which a software renderer gains nothing by
    model = open_chat_model(model_path, backend, kv_dtype="f32")
    adapter = random_adapter(model, LoRAConfig(rank=4, alpha=8), seed=3)
    adapter.parameters *= 0.05
    base, rounded = model.logits(TOKENS), model.logits(TOKENS, adapter)
    assert dtype_of(model.engine(adapter).state.adapters) == ("f16" if backend.f16_adapters else "f32")
    monkeypatch.setattr(backend, "f16_adapters", False)
    exact = open_chat_model(model_path, backend, kv_dtype="f32").logits(TOKENS, adapter)
    effect = np.linalg.norm(exact - base)
    assert effect > 0.1 * np.linalg.norm(base)
    # The adapter's own rounding is 2^-11; int8 rounding behind it amplifies the last bits of everything.
    assert np.linalg.norm(rounded - exact) < 0.02 * effect


def test_without_rounding_adapters_stay_f32(model_path: Path, cpu: Callable[..., Backend]) -> None:
    model = open_chat_model(model_path, cpu(), activations="float")
    adapter = random_adapter(model, LoRAConfig(rank=4))
    assert dtype_of(model.engine(adapter).state.adapters) == "f32"
