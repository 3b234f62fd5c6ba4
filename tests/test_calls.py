"""The low-level calls: one token at a time, and gradients that add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_chat import VOCABULARY, make_chat_model, open_chat_model, prompt_of, strong_adapter
from tritune import Adapter, ConfigError, ContextLengthError, Model
from tritune.backends.base import OPTIMIZER_SETTINGS, Backend
from tritune.calls import (
    create_inference_state,
    create_training_state,
    forward_backward,
    forward_token,
    generate,
    read_loss,
)
from tritune.models.batch import Piece
from tritune.models.training_state import MicroBatch


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("calls"))


@pytest.fixture
def model(path: Path, backend: Backend) -> Model:
    return open_chat_model(path, backend, activations="float")


# -- forward_token ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("adapted", [False, True])
def test_token_by_token_equals_all_at_once(model: Model, adapted: bool) -> None:
    adapter = strong_adapter(model) if adapted else None
    tokens = prompt_of(35)
    expected = model.logits(tokens, adapter)
    state = create_inference_state(model, adapter)
    for position, token in enumerate(tokens):
        logits = forward_token(state, token, position)
        assert (logits.dtype, logits.shape) == (np.float32, (VOCABULARY,))
        np.testing.assert_allclose(logits, expected[position], atol=3e-4)


def test_going_back_forgets_what_came_after(model: Model) -> None:
    tokens = prompt_of(6)
    state = create_inference_state(model)
    for position, token in enumerate(tokens):
        forward_token(state, token, position)
    other = [*tokens[:3], 77, 78]
    for position in (3, 4):
        logits = forward_token(state, other[position], position)
    np.testing.assert_allclose(logits, model.logits(other)[-1], atol=3e-4)


def test_what_forward_token_refuses(model: Model) -> None:
    state = create_inference_state(model)
    state.sequence.truncate(0)
    forward_token(state, 5, 0)
    for position in (-1, 2):
        with pytest.raises(ConfigError, match=rf"position {position}: expected 0 … 1, the cache holds 1 tokens"):
            forward_token(state, 5, position)
    for token in (-1, VOCABULARY):
        with pytest.raises(ConfigError, match=f"token {token} is not in the vocabulary"):
            forward_token(state, token, 1)
    assert state.sequence.tokens == [5]


def test_the_context_ends(path: Path, model: Model) -> None:
    short = open_chat_model(path, model.backend, context=5)
    state = create_inference_state(short)
    for position in range(5):
        forward_token(state, 7, position)
    with pytest.raises(ContextLengthError, match="position 5: the context holds 5 tokens"):
        forward_token(state, 7, 5)


# -- generate ---------------------------------------------------------------------------------------------------------
def test_generate_penalises_repetition_by_default(model: Model) -> None:
    prompt = prompt_of(5)
    found: list[list[int]] = []
    for given, penalty in ({}, 1.1), ({"repetition_penalty": 1.0}, 1.0):
        ids = generate(create_inference_state(model), prompt, max_tokens=15, **given)
        stream = model.stream(prompt, max_tokens=15, repetition_penalty=penalty, ignore_eos=True)
        stream.read()
        assert ids == stream.token_ids
        found.append(ids)
    assert found[0] != found[1]


def test_generate_never_stops_without_eos_ids_and_does_not_return_one(model: Model) -> None:
    prompt = prompt_of(5)
    state = create_inference_state(model)
    ids = generate(state, prompt, max_tokens=30, temperature=1.2, seed=2)
    assert len(ids) == 30
    eos = ids[11]
    assert generate(state, prompt, max_tokens=30, temperature=1.2, seed=2, eos_ids=[eos]) == ids[: ids.index(eos)]
    assert generate(state, np.array(prompt), max_tokens=30, temperature=1.2, seed=2) == ids  # type: ignore[arg-type]
    assert generate(state, prompt, max_tokens=30, temperature=1.2, seed=3) != ids


# -- forward_backward -------------------------------------------------------------------------------------------------
def test_gradients_losses_and_counts_add_up(model: Model) -> None:
    adapter = strong_adapter(model)
    state = create_training_state(model, adapter, max_rows=16)
    sequences = [(prompt_of(9), [False] * 4 + [True] * 5), (prompt_of(16, seed=1), [True] * 16)]
    total, count = 0.0, 0
    summed: dict[str, np.ndarray] = {name: np.zeros_like(t) for name, t in adapter.tensors().items()}
    expected = []
    for tokens, mask in sequences:
        submits = model.backend.stats.submits
        forward_backward(state, tokens, mask)
        assert model.backend.stats.submits == submits + 1
    found = adapter.tensors(model.backend.read(state.grads).astype(np.float32))
    loss, trained = read_loss(state)
    for tokens, mask in sequences:
        expected.append(model.loss_and_gradients(tokens, mask, adapter))
    for (mean, gradients), targets in zip(expected, (5, 15), strict=True):
        total, count = total + mean * targets, count + targets
        for name, gradient in gradients.items():
            summed[name] += gradient * np.float32(targets)
    assert trained == count == 20
    assert loss == pytest.approx(total, rel=1e-5)
    for name, gradient in summed.items():
        np.testing.assert_allclose(found[name], gradient, atol=2e-5 * np.abs(gradient).max(), err_msg=name)


def test_an_update_ends_the_step(model: Model) -> None:
    adapter = strong_adapter(model)
    state = create_training_state(model, adapter, max_rows=16)
    backend = model.backend
    numbers = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "one_minus_beta1": 0.1, "one_minus_beta2": 0.001}
    backend.write(state.settings, np.array([numbers.get(name, 0.0) for name in OPTIMIZER_SETTINGS], np.float32))
    forward_backward(state, prompt_of(9), [True] * 9)
    state.update_program().run()
    assert not backend.read(state.grads).any()
    assert read_loss(state) == (0.0, 0)
    moved = backend.read(state.parameters) - adapter.parameters
    assert np.abs(moved).max() == pytest.approx(1e-3, rel=0.01)  # Adam's first step is lr in every element


def test_a_state_made_anew_holds_the_adapter_and_no_sums(model: Model) -> None:
    adapter, other = strong_adapter(model), strong_adapter(model, seed=1)
    state = create_training_state(model, adapter, max_rows=16)
    forward_backward(state, prompt_of(9), [True] * 9)
    state = create_training_state(model, other, max_rows=16)
    assert read_loss(state) == (0.0, 0)
    assert not model.backend.read(state.grads).any()
    np.testing.assert_array_equal(model.backend.read(state.parameters), other.parameters)


@pytest.mark.parametrize(
    ("tokens", "mask", "message"),
    [
        ([3] * 17, [True] * 17, "a sequence of 17 tokens; the training state was made for 16"),
        ([3, 4], [True], r"expected 2 flags, one for each token, found shape \(1,\)"),
        ([3, 4], [True, False], "no token is a target"),
        ([], [], "no token is a target"),
        ([3, VOCABULARY], [True, True], f"token {VOCABULARY} is not in the vocabulary"),
        ([3, -1], [True, True], "token -1 is not in the vocabulary"),
    ],
)
def test_what_forward_backward_refuses(path: Path, tokens: list[int], mask: list[bool], message: str) -> None:
    from tritune.backends.numpy import NumpyBackend

    model = open_chat_model(path, NumpyBackend())
    state = create_training_state(model, Adapter.create(model), max_rows=16)
    with pytest.raises(ConfigError, match=message):
        forward_backward(state, tokens, mask)
    assert read_loss(state) == (0.0, 0)


def test_the_first_layers_can_be_left_out(model: Model) -> None:
    adapter = strong_adapter(model)
    state = create_training_state(model, adapter, max_rows=16, start_layer=1)
    forward_backward(state, prompt_of(9), [True] * 9)
    for name, gradient in adapter.tensors(model.backend.read(state.grads).astype(np.float32)).items():
        assert bool(gradient.any()) == (".layers.1." in name), name
    with pytest.raises(ConfigError, match="start_layer 2: the model has layers 0 … 1"):
        create_training_state(model, adapter, max_rows=16, start_layer=2)


def test_packed_sequences_equal_separate_ones(model: Model) -> None:
    """Lengths around the sizes of tiles; the rows of one never see those of another."""
    adapter = strong_adapter(model)
    state = create_training_state(model, adapter, max_rows=64)
    sequences = [prompt_of(length, seed=length) for length in (1, 7, 2, 33, 16)]
    targets = np.full(64, -1, np.int32)
    start = 0
    for tokens in sequences:
        targets[start : start + len(tokens) - 1] = tokens[1:]
        start += len(tokens)
    state.forward_backward(MicroBatch([Piece(tokens, 0, 1) for tokens in sequences], targets))
    packed, packed_loss = model.backend.read(state.grads).copy(), read_loss(state)
    state.clear()
    for tokens in sequences[1:]:
        forward_backward(state, tokens, [True] * len(tokens))
    assert packed_loss[1] == read_loss(state)[1] == 6 + 1 + 32 + 15
    assert packed_loss[0] == pytest.approx(read_loss(state)[0], rel=1e-5)
    separate = model.backend.read(state.grads)
    np.testing.assert_allclose(packed, separate, atol=2e-5 * np.abs(separate).max())


def test_an_inference_state_allocates_no_backward_buffer(path: Path, model: Model) -> None:
    """It makes nothing that depends on the number of layers (the cache is the model's) and no lse."""
    state = create_inference_state(model, strong_adapter(model)).state
    assert state._buffers.lse is None
    assert state._buffers.mid is None
    names = {name for name in vars(state) if "grad" in name or "back" in name}
    assert names == set()
