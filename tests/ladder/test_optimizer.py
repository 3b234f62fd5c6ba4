"""Ten AdamW steps, clipped and decayed, equal torch's on peft's parameters; steps that are not finite are skipped."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles.harness import Example, Ours, batch_of, error, example, random_adapter
from oracles.reference import Reference, identity, mean_loss, rounding, trainable
from tritune.backends.base import OPTIMIZER_SETTINGS, OPTIMIZER_STATE, Backend
from tritune.lora import Adapter, LoRAConfig
from tritune.models.training_state import TrainingState

STEPS = 10
MODEL = {"hidden": 32, "ffn": 52}
LORA = LoRAConfig(rank=4, alpha=8, rank_pattern={"q_proj": 2}, alpha_pattern={"v_proj": 20})
BETAS, EPS, DECAY = (0.9, 0.99), 1e-8, 0.1


def learning_rate(step: int) -> float:
    """Another one at each step, as a schedule gives."""
    return 0.01 * (1 - step / (2 * STEPS))


def settings(lr: float, clip: float) -> np.ndarray:
    """The optimizer's settings as the device reads them."""
    values = {"lr": lr, "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS, "weight_decay": DECAY, "clip": clip}
    values |= {"one_minus_beta1": 1 - BETAS[0], "one_minus_beta2": 1 - BETAS[1]}
    return np.array([values[name] for name in OPTIMIZER_SETTINGS], np.float32)


def state_of(state: TrainingState) -> dict[str, float]:
    values = np.asarray(state.backend.read(state.optimizer_state), np.float64).tolist()
    return dict(zip(OPTIMIZER_STATE, values, strict=True))


def micro_batches(vocab: int, step: int) -> list[list[Example]]:
    """Two of unequal numbers of trained tokens."""
    return [
        [example(vocab, n, 10 * step + n, share) for n in lengths] for lengths, share in (((9, 5), 0.9), ((7,), 0.3))
    ]


def torch_steps(reference: Reference, adapter: Adapter, clip: float, vocab: int) -> tuple[dict, list[float]]:
    """Parameters after STEPS steps in torch, and each step's gradient norm."""
    model = reference.with_adapter(adapter)
    parameters = trainable(model)
    optimizer = torch.optim.AdamW(list(parameters.values()), lr=1.0, betas=BETAS, eps=EPS, weight_decay=DECAY)
    norms: list[float] = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = learning_rate(step)
        optimizer.zero_grad()
        with rounding(identity):
            mean_loss(model, [item for items in micro_batches(vocab, step) for item in items]).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(parameters.values()), clip)))
        optimizer.step()
    return {name: p.detach().numpy() for name, p in parameters.items()}, norms


def one_step(ours: Ours, state: TrainingState, step: int, clip: float) -> None:
    """Accumulate the step's micro-batches; the last one brings the update with it."""
    ours.backend.write(state.settings, settings(learning_rate(step), clip))
    batches = micro_batches(ours.config.vocab_size, step)
    for index, items in enumerate(batches):
        state.forward_backward(batch_of(items, 16), update=index == len(batches) - 1)


@pytest.mark.parametrize("clip", [0.2, 1e9], ids=["clipped", "not clipped"])
def test_ten_steps(clip: float, backend: Backend, make) -> None:
    directory, reference = make(**MODEL)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, LORA)
    wanted, norms = torch_steps(reference, adapter, clip, ours.config.vocab_size)
    assert all(norm > 2 * clip for norm in norms) if clip < 1 else all(norm < clip for norm in norms)
    state = ours.training(adapter, 16)
    for step in range(STEPS):
        one_step(ours, state, step, clip)
        now = state_of(state)
        assert now["grad_norm"] == pytest.approx(norms[step], rel=1e-4)
        assert now["finite"] == 1
        assert now["steps"] == step + 1
    parameters = np.asarray(backend.read(state.parameters))
    for name, found in adapter.tensors(parameters).items():
        assert error(found, wanted[name]) <= 1e-5 * (10 if ".lora_B." in name else 1), name
        assert error(adapter.tensors()[name], wanted[name]) > 1e-2, name  # it did move
    assert not np.asarray(backend.read(state.grads)).any()


def test_padding_of_ranks_stays_zero(backend: Backend, make) -> None:
    """q's rank is 2 in a pool of rank 4: what lies beyond is not trained."""
    directory, _ = make(**MODEL)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, LORA)
    state = ours.training(adapter, 16)
    for step in range(2):
        one_step(ours, state, step, 1.0)
    parameters = np.asarray(backend.read(state.parameters), np.float32)
    for matrix in adapter.tensors(parameters).values():
        matrix[...] = 0
    assert not parameters.any()


@pytest.mark.parametrize("planted", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_step_that_is_not_finite_is_skipped(where: str, planted: float, backend: Backend, make) -> None:
    directory, _ = make(**MODEL)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, LORA)
    state, straight = ours.training(adapter, 16), ours.training(adapter, 16)
    for each in (state, straight):
        one_step(ours, each, 0, 1.0)
    before = {name: backend.read(b) for name, b in moving(state).items()}

    for times in (1, 2):
        buffer = state.grads if where == "gradient" else state.totals
        values = np.asarray(backend.read(buffer)).copy()
        values.reshape(-1)[0] = planted
        backend.write(buffer, values)
        one_step(ours, state, 1, 1.0)
        now = state_of(state)
        assert (now["finite"], now["steps"], now["skipped"], now["skipped_in_a_row"]) == (0, 1, times, times)
        for name, buffer in moving(state).items():
            np.testing.assert_array_equal(backend.read(buffer), before[name], err_msg=name)
        assert not np.asarray(backend.read(state.grads)).any()

    for each in (state, straight):
        one_step(ours, each, 2, 1.0)
    now = state_of(state)
    assert (now["finite"], now["steps"], now["skipped"], now["skipped_in_a_row"]) == (1, 2, 2, 0)
    for (name, found), wanted in zip(moving(state).items(), moving(straight).values(), strict=True):
        np.testing.assert_array_equal(backend.read(found), backend.read(wanted), err_msg=name)


def moving(state: TrainingState) -> dict:
    """What a step changes."""
    return {"parameters": state.parameters, "m": state.m, "v": state.v}


def test_a_step_without_trained_tokens_is_skipped(backend: Backend, make) -> None:
    directory, _ = make(**MODEL)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, LORA)
    state = ours.training(adapter, 16)
    item = example(ours.config.vocab_size, 9)
    item.trained[:] = False
    backend.write(state.settings, settings(0.01, 1.0))
    state.forward_backward(batch_of([item], 16), update=True)
    assert state_of(state)["skipped"] == 1
    np.testing.assert_array_equal(backend.read(state.parameters), adapter.parameters)
