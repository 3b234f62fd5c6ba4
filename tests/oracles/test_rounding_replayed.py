"""Way b: with the rounding on and our own int8 codes replayed in the reference, all is as exact as with it off."""

from __future__ import annotations

import pytest

from oracles.cases import CASES, Case
from oracles.harness import EXACT, Ours, close_gradients, error, example, random_adapter
from oracles.reference import replayed
from oracles.taped import capture
from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend

# Every linear class, activation and model type once; adapters of all kinds are in way a.
NAMES = (
    "bitnet relu2, rank and alpha patterns",
    "bitnet silu bitlinear, rslora with patterns",
    "bitnet, 3 layers, trained from the second on",
    "bitnet master weights",
    "llama, head_dim not hidden / heads",
    "llama bitlinear, patterns, one row more than a bucket",
)


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients(name: str, backend: Backend, make) -> None:
    case: Case = CASES[name]
    directory, reference = make(**case.model)
    taped, seen = capture(backend)
    ours = Ours(taped, directory, "int8")
    adapter = random_adapter(ours.config, case.lora)
    item = example(ours.config.vocab_size, case.length)

    logits = ours.logits(item.ids, adapter)
    assert len(seen) == 4 * ours.config.num_layers
    codes = [(codes[: case.length], scales[: case.length]) for codes, scales in seen]
    assert error(logits, reference.logits(item.ids, adapter, replayed(codes))) <= EXACT

    seen.clear()
    loss, gradients = ours.loss_and_gradients([item], adapter, start_layer=case.start_layer, recompute=False)
    assert len(seen) == 4 * ours.config.num_layers
    codes = [(codes[: case.length], scales[: case.length]) for codes, scales in seen]
    wanted_loss, wanted = reference.loss_and_gradients([item], adapter, replayed(codes), case.start_layer)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    close_gradients(gradients, wanted)


def test_replay_is_not_the_rounding_off(make) -> None:
    """What way b compares is far from what way a compares: the codes do matter."""
    directory, _ = make(hidden=32)
    item = example(300, 9)
    rounded, floats = (Ours(NumpyBackend(), directory, kind).logits(item.ids) for kind in ("int8", "float"))
    assert error(rounded, floats) > 10 * EXACT
