"""Way a: with the rounding off on both sides, logits and every LoRA gradient equal those of transformers and peft."""

from __future__ import annotations

import numpy as np
import pytest

from oracles.cases import CASES, Case
from oracles.harness import EXACT, Example, Ours, close_gradients, error, example, random_adapter
from oracles.reference import identity
from tritune.backends.base import Backend
from tritune.models import loss_head


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_logits_and_gradients(case: Case, backend: Backend, make) -> None:
    directory, reference = make(**case.model)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, case.lora)
    item = example(ours.config.vocab_size, case.length)
    expected = reference.logits(item.ids, adapter, identity)
    assert error(reference.logits(item.ids, None, identity), expected) > 30 * EXACT  # the adapter does something
    assert error(ours.logits(item.ids, adapter), expected) <= EXACT
    wanted_loss, wanted = reference.loss_and_gradients([item], adapter, identity, case.start_layer)
    loss, gradients = ours.loss_and_gradients([item], adapter, start_layer=case.start_layer)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    close_gradients(gradients, wanted)


@pytest.mark.parametrize("mask", ["first", "last", "all", "only the middle one"])
def test_mask_at_any_position(mask: str, backend: Backend, make) -> None:
    directory, reference = make(hidden=32)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, CASES["bitnet master weights"].lora)
    ids = example(ours.config.vocab_size, 9).ids
    trained = np.zeros(9, np.bool_)
    trained[
        {"first": slice(1, 2), "last": slice(8, 9), "all": slice(1, 9), "only the middle one": slice(4, 5)}[mask]
    ] = 1
    item = Example(ids, trained)
    loss, gradients = ours.loss_and_gradients([item], adapter)
    wanted_loss, wanted = reference.loss_and_gradients([item], adapter, identity)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    close_gradients(gradients, wanted)


def test_packed_sequences(backend: Backend, make) -> None:
    """One batch of several sequences here, one forward for each there."""
    directory, reference = make(hidden=32)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, CASES["bitnet relu2, rank and alpha patterns"].lora)
    items = [example(ours.config.vocab_size, length, length) for length in (7, 2, 19, 5)]
    loss, gradients = ours.loss_and_gradients(items, adapter)
    wanted_loss, wanted = reference.loss_and_gradients(items, adapter, identity)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    close_gradients(gradients, wanted)


def test_head_in_chunks(backend: Backend, make, monkeypatch: pytest.MonkeyPatch) -> None:
    """More trained rows than a chunk of logits holds: 64 of them at a time."""
    monkeypatch.setattr(loss_head, "HEAD_BYTES", 1)
    directory, reference = make(hidden=32)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, CASES["bitnet master weights"].lora)
    item = example(ours.config.vocab_size, 150, share=0.97)
    assert int((item.targets >= 0).sum()) > 128
    loss, gradients = ours.loss_and_gradients([item], adapter)
    wanted_loss, wanted = reference.loss_and_gradients([item], adapter, identity)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    close_gradients(gradients, wanted)
