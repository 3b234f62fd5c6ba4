"""Scores equal the log-softmax of the model's logits, however sequences fall into batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiny_chat import VOCABULARY, strong_adapter
from tritune import Adapter, ContextLengthError, Model
from tritune.data import Example
from tritune.evaluation import scorer
from tritune.evaluation.scorer import Scorer


def sequence(length: int, seed: int, trained: slice = slice(1, None), begins: list[int] | None = None) -> Example:
    rng = np.random.default_rng([length, seed])
    tokens = rng.integers(3, VOCABULARY, length).astype(np.int32)
    tokens[: len(begins or [])] = begins or []
    mask = np.zeros(length, np.bool_)
    mask[trained] = True
    return Example(tokens, mask)


def expected(model: Model, example: Example, adapter: Adapter | None) -> tuple[Any, Any]:
    """(nll, whether it is the likeliest) of each marked token, from all the logits."""
    logits = model.logits(example.tokens.tolist(), adapter).astype(np.float64)
    logp = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    logp -= logits.max(-1, keepdims=True)
    at = np.flatnonzero(example.trained[1:])
    goals = example.tokens[1:][at]
    return -logp[at, goals], logits[at].argmax(-1) == goals


def check(model: Model, examples: list[Example], adapters: list[Adapter | None]) -> None:
    scoring = Scorer(model, adapters, max_length=150, likeliest=True)
    free = scoring._state.cache.free_blocks
    for number, adapter in enumerate(adapters):
        scores = list(scoring.score(examples, number))
        assert len(scores) == len(examples)
        for score, example in zip(scores, examples, strict=True):
            nll, greedy = expected(model, example, adapter)
            np.testing.assert_allclose(score.nll, nll, atol=2e-4)
            assert score.greedy is not None
            np.testing.assert_array_equal(score.greedy, greedy)
    assert scoring._state.cache.free_blocks == free


def test_sequences_of_any_length_under_base_and_adapters(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "MAX_ROWS", 64)  # so that sequences go on in the next batch
    lengths = [2, 150, 3, 31, 33, 1, 64, 65, 2, 90]
    examples = [sequence(length, seed) for seed, length in enumerate(lengths)]
    examples[3] = sequence(31, 3, slice(10, 12))
    examples[4] = sequence(33, 4, slice(0, 1))  # a first token is nobody's target
    adapters = [None, strong_adapter(model, 1), strong_adapter(model, 2, rank=3, target_modules=["v_proj"])]
    check(model, examples, adapters)


def test_more_sequences_than_a_batch_takes(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "MAX_SEQUENCES", 3)
    check(model, [sequence(4 + n % 3, n) for n in range(11)], [None])


def test_shared_beginnings_change_nothing(model: Model) -> None:
    """Choices of one question, a beginning of it, and one whose first marked token lies inside of the beginning."""
    begin = sequence(100, 0).tokens.tolist()
    examples = [sequence(100 + n, n, slice(98, None), begin[:98]) for n in range(2, 6)]
    examples += [sequence(70, 1, slice(60, None), begin[:70]), sequence(120, 1, slice(5, None), begin)]
    check(model, examples, [None, strong_adapter(model)])


def test_a_shared_beginning_is_computed_once(numpy_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = sequence(100, 0).tokens.tolist()
    examples = [sequence(104, n, slice(100, None), begin) for n in range(4)]
    scoring = Scorer(numpy_model)
    rows: list[int] = []
    run = scoring._state.score

    def counted(pieces: Any, *rest: Any, **options: Any) -> Any:
        rows.append(sum(len(piece.tokens) for piece in pieces))
        return run(pieces, *rest, **options)

    monkeypatch.setattr(scoring._state, "score", counted)
    list(scoring.score(examples))
    assert sum(rows) == 103 + 3 * (103 - 96)


def test_what_does_not_fit_is_refused(numpy_model: Model) -> None:
    with pytest.raises(ContextLengthError, match="33 tokens; at most 32"):
        list(Scorer(numpy_model, max_length=32).score([sequence(5, 0), sequence(33, 0)]))


def test_progress_counts_every_token(numpy_model: Model) -> None:
    examples = [sequence(n, n, slice(n - 1, None)) for n in (3, 600, 20)]
    seen: list[int] = []
    list(Scorer(numpy_model).score(examples, progress=seen.append))
    assert seen == [3, 600, 20]


def test_an_abandoned_run_gives_its_blocks_back(numpy_model: Model) -> None:
    scoring = Scorer(numpy_model)
    free = scoring._state.cache.free_blocks
    run = scoring.score([sequence(300, n) for n in range(4)])
    next(run)
    run.close()
    assert scoring._state.cache.free_blocks == free
