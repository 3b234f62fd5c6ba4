"""LoRA dropout: with our masks given to peft all gradients are exact; with another mask in backward they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from oracles.harness import EXACT, Example, Floats, Gradients, Ours, close_gradients, error, example, random_adapter
from oracles.reference import identity
from oracles.taped import Arguments, Taped
from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend
from tritune.lora import Adapter, LoRAConfig
from tritune.models.linears import GROUP_OF, linear_groups, module_path
from tritune.ops.dropout import dropout

RATE, SEED, STEP = 0.3, 5, 2
MODEL = {"hidden": 32, "ffn": 52}


def masks_of(adapter: Adapter, rows: int) -> dict[str, Floats]:
    """What each adapted linear's LoRA input is multiplied with; projections of one group share a mask."""
    groups = linear_groups(adapter.model_config)
    names = [group.name for group in groups]
    masks: dict[str, Floats] = {}
    for target in adapter.targets:
        index = names.index(GROUP_OF[target.projection])
        ones = np.ones((rows, groups[index].in_features))
        mask = dropout(ones, RATE, target.layer * len(names) + index, SEED, STEP)
        masks["base_model.model." + module_path(target.layer, target.projection)] = mask
    return masks


def both(
    backend: Backend, directory: Path, reference, options: dict | None = None
) -> tuple[float, Gradients, float, Gradients]:
    """(loss, gradients) of ours and of the reference."""
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, LoRAConfig(rank=4, alpha=8))
    item: Example = example(ours.config.vocab_size, 11)
    found = ours.loss_and_gradients([item], adapter, dropout=(RATE, SEED, STEP), **(options or {}))
    masks = masks_of(adapter, len(item.ids))
    return *found, *reference.loss_and_gradients([item], adapter, identity, masks=masks)


@pytest.mark.parametrize("recompute", [True, False])
def test_gradients_with_the_same_masks(recompute: bool, backend: Backend, make) -> None:
    directory, reference = make(**MODEL)
    loss, gradients, wanted_loss, wanted = both(backend, directory, reference, {"recompute": recompute})
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    close_gradients(gradients, wanted)


def test_masks_drop_their_share(make) -> None:
    directory, _ = make(**MODEL)
    config = Ours(NumpyBackend(), directory).config
    masks = masks_of(random_adapter(config, LoRAConfig(rank=4, alpha=8)), 64)
    flat = np.concatenate([mask.ravel() for mask in masks.values()])
    assert np.mean(flat == 0) == pytest.approx(RATE, abs=0.01)
    np.testing.assert_allclose(flat[flat != 0], 1 / (1 - RATE))
    assert (
        error(
            masks["base_model.model." + module_path(0, "o_proj")][:, :32],
            masks["base_model.model." + module_path(1, "o_proj")][:, :32],
        )
        > EXACT
    )


def test_another_mask_in_backward_is_caught(make) -> None:
    def next_step(backend: Backend, arguments: Arguments, run: Callable[[], None]) -> None:
        state = arguments["dropout"].state.array
        state[1] += 1
        run()
        state[1] -= 1

    directory, reference = make(**MODEL)
    _, gradients, _, wanted = both(Taped(NumpyBackend(), {"linear_backward": next_step}), directory, reference)
    with pytest.raises(AssertionError, match="lora_A"):
        close_gradients(gradients, wanted)


def test_no_mask_in_backward_is_caught(make) -> None:
    def undropped(backend: Backend, arguments: Arguments, run: Callable[[], None]) -> None:
        backend.linear_backward(**{k: v for k, v in arguments.items() if k not in ("self", "dropout")})

    directory, reference = make(**MODEL)
    _, gradients, _, wanted = both(Taped(NumpyBackend(), {"linear_backward": undropped}), directory, reference)
    with pytest.raises(AssertionError, match="lora_A"):
        close_gradients(gradients, wanted)
