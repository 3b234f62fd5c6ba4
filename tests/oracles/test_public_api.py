"""Way a through the calls that users make, on a tiny model and on the built-in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles.harness import EXACT, close_gradients, error, example, random_adapter
from oracles.reference import Reference, identity
from tiny_chat import make_chat_model
from tritune import Adapter, LoRAConfig, Model
from tritune.assets import BUILTIN_MODEL
from tritune.backends.base import Backend
from tritune.models.weights import open_model


def check(model: Model, reference: Reference, adapter: Adapter, length: int, start_layer: int = 0) -> None:
    """Logits with and without adapter, loss, and every gradient."""
    item = example(model.config.vocab_size, length)
    assert error(model.logits(item.ids), reference.logits(item.ids, None, identity)) <= EXACT
    assert error(model.logits(item.ids, adapter), reference.logits(item.ids, adapter, identity)) <= EXACT
    loss, gradients = model.loss_and_gradients(item.ids, item.trained, adapter, start_layer=start_layer)
    wanted_loss, wanted = reference.loss_and_gradients([item], adapter, identity, start_layer)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    close_gradients(dict(gradients), wanted)


@pytest.mark.parametrize("start_layer", [0, 1])
def test_tiny_model(start_layer: int, backend: Backend, tmp_path: Path) -> None:
    path = make_chat_model(tmp_path)
    model = Model(open_model(path), backend, "float")
    adapter = Adapter.create(model, LoRAConfig(rank=8, alpha=16, target_modules="all-linear"), seed=0)
    for name, matrix in random_adapter(model.config, adapter.config).tensors().items():
        adapter.tensors()[name][...] = matrix
    check(model, Reference(path), adapter, 21, start_layer)


def test_built_in_model(backend: Backend, make) -> None:
    """All twelve layers and the whole vocabulary."""
    model = Model(open_model(BUILTIN_MODEL), backend, "float", context=64)
    _, reference = make(path=BUILTIN_MODEL)
    check(model, reference, random_adapter(model.config, LoRAConfig(rank=4, alpha=8)), 17)
