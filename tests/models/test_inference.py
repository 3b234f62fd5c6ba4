"""InferenceState: batches of several sequences and adapters, prompts and single tokens mixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_chat import make_chat_model, open_chat_model, prompt_of, strong_adapter
from tritune import Model
from tritune.backends.base import Backend
from tritune.lora import AdapterPool
from tritune.models.batch import Piece
from tritune.models.cache import CachedSequence, KVCache
from tritune.models.inference import InferenceState, bucket_of


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("inference"))


@pytest.fixture
def model(path: Path, backend: Backend) -> Model:
    return open_chat_model(path, backend, activations="float")


def sample_plainly(state: InferenceState, allowed: np.ndarray | None = None) -> None:
    """Temperature 1, no filter, seed 5."""
    seen = np.zeros((1, -(-state.model.config.vocab_size // 32)), np.uint32)
    settings, counters = np.array([[1.0, 1.0, 0.0, 1.0]], np.float32), np.array([[0, 5, 0, 0]], np.uint32)
    state.set_sampling(settings, counters, seen, allowed)


@pytest.mark.parametrize(("count", "limit", "size"), [(1, 64, 1), (2, 64, 2), (3, 64, 4), (64, 64, 64), (65, 100, 100)])
def test_buckets_are_powers_of_two(count: int, limit: int, size: int) -> None:
    assert bucket_of(count, limit) == size


def test_a_batch_of_mixed_adapters_equals_each_one_alone(model: Model) -> None:
    """Prompts of base, adapters and a scaled adapter in one batch; then a token of one beside a prompt of another."""
    adapters = [strong_adapter(model), strong_adapter(model, seed=1, rank=7, target_modules=["q_proj", "up_proj"])]
    pool = AdapterPool.for_adapters(model.backend, adapters)
    cache = KVCache(model.backend, model.config, 16, "f32")
    state = InferenceState(model.device_model, cache, max_rows=64, max_sequences=5, adapters=pool)
    cases = [(0, 1.0, None), (1, 1.0, adapters[0]), (2, 1.0, adapters[1]), (1, 0.0, None)]
    prompts = [prompt_of(length, seed=length) for length in (9, 1, 17, 6)]
    sequences = [CachedSequence(cache) for _ in cases]

    def piece(index: int, tokens: list[int]) -> Piece:
        start = len(sequences[index].tokens)
        sequences[index].extend(tokens)
        return Piece(tokens, start, cases[index][0], cases[index][1], tuple(sequences[index].blocks))

    whole = state.logits([piece(i, prompt) for i, prompt in enumerate(prompts)])
    expected = [model.logits(prompt, cases[i][2]) for i, prompt in enumerate(prompts)]
    np.testing.assert_allclose(whole, np.concatenate(expected), atol=3e-4)
    more = [[5], [6, 7, 8], [9]]
    mixed = state.logits([piece(i, tokens) for i, tokens in enumerate(more)])
    expected = [model.logits(prompts[i] + tokens, cases[i][2])[-len(tokens) :] for i, tokens in enumerate(more)]
    np.testing.assert_allclose(mixed, np.concatenate(expected), atol=3e-4)


def test_too_much_at_once_is_refused(model: Model) -> None:
    state = InferenceState(model.device_model, KVCache(model.backend, model.config, 4), max_rows=8, max_sequences=1)
    for pieces in ([Piece([1] * 9, blocks=(0,))], [Piece([1], blocks=(0,)), Piece([1], blocks=(1,))]):
        with pytest.raises(ValueError, match="at most 8 of 1"):
            state.forward(pieces)


def test_only_allowed_tokens_are_drawn(model: Model) -> None:
    cache = KVCache(model.backend, model.config, 4, "f32")
    state = InferenceState(model.device_model, cache, max_rows=8)
    allowed = np.zeros((1, -(-model.config.vocab_size // 32)), np.uint32)
    allowed[0, 3] = 1 << 4 | 1 << 9
    sample_plainly(state, allowed)
    sequence = CachedSequence(cache)
    drawn: set[int] = set()
    for position in range(20):
        sequence.extend([7])
        result = state.forward_and_sample([Piece([7], position, blocks=tuple(sequence.blocks))], limited=True)
        drawn.add(int(result.tokens[0]))
    assert drawn == {100, 105}


def test_programs_can_be_made_before_they_are_needed(model: Model) -> None:
    cache = KVCache(model.backend, model.config, 4)
    state = InferenceState(model.device_model, cache, max_rows=8)
    state.prepare(1)
    state.prepare(5)
    sample_plainly(state)
    objects = model.backend.stats.objects
    sequence = CachedSequence(cache)
    for tokens in ([5, 6, 7, 8, 9], [3]):
        start = len(sequence.tokens)
        sequence.extend(tokens)
        state.forward_and_sample([Piece(tokens, start, blocks=tuple(sequence.blocks))])
    assert model.backend.stats.objects == objects
