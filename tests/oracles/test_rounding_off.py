"""Way a: with the rounding off on both sides, logits and every LoRA gradient equal those of transformers and peft."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.cases import CASES, Case
from oracles.harness import EXACT, Example, Gradients, Ours, error, example, random_adapter, worst
from oracles.reference import identity

from tritune.backends.base import Backend


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
    wanted_loss, wanted = reference.loss_and_gradients(item, adapter, identity, case.start_layer)
    loss, gradients = ours.loss_and_gradients([item], adapter, start_layer=case.start_layer)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    compare(gradients, wanted)


def compare(found: Gradients, wanted: Gradients) -> None:
    """Every tensor, by name; where the gradient is zero (q and k of a lone first row, layers below the start) noise may stay."""
    largest = max(np.linalg.norm(value) for value in wanted.values())
    still = {name for name, value in wanted.items() if not value.any()}
    assert all(np.linalg.norm(found[name]) <= 1e-6 * largest for name in still)
    value, name = worst(
        {n: g for n, g in found.items() if n not in still}, {n: g for n, g in wanted.items() if n not in still}
    )
    assert value <= EXACT, name


@pytest.mark.parametrize("mask", ["first", "last", "all", "only the middle one"])
def test_mask_at_any_position(mask: str, backend: Backend, make) -> None:
    directory, reference = make(hidden=32)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, CASES["bitnet master weights"].lora)
    ids = example(ours.config.vocab_size, 9).ids
    trained = np.zeros(9, np.bool_)
    trained[{"first": slice(1, 2), "last": slice(8, 9), "all": slice(1, 9), "only the middle one": slice(4, 5)}[mask]] = 1
    item = Example(ids, trained)
    loss, gradients = ours.loss_and_gradients([item], adapter)
    wanted_loss, wanted = reference.loss_and_gradients(item, adapter, identity)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    compare(gradients, wanted)
