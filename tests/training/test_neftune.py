"""NEFTune: noise of the paper's size on the embeddings, in training alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tiny_chat import chat_rows, strong_adapter
from tritune import Adapter, LoRAConfig, Model, TrainConfig, train
from tritune.models.training_state import MicroBatch, TrainingState
from tritune.training import Callback, EvalLog, StepLog

ROWS = chat_rows(6)
CONFIG = TrainConfig(
    lr=1e-3, max_steps=2, batch_tokens=96, max_seq_len=64, log_every=1, warmup=0, neftune_alpha=5.0, eval_every=1
)


class Heard(Callback):
    """Losses of the steps and of the evaluations."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.evals: list[float] = []

    def on_log(self, log: StepLog) -> None:
        self.steps.append(log.loss)

    def on_eval(self, log: EvalLog) -> None:
        self.evals.append(log.eval_loss)


def test_the_noise_is_of_the_papers_size(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform in ± alpha / √(length · hidden) for each sequence of a packed batch; spare rows get none."""
    seen: list[tuple[list[int], np.ndarray, np.ndarray]] = []
    real = TrainingState.forward_backward

    def watched(self: TrainingState, batch: MicroBatch, *, update: bool = False) -> None:
        real(self, batch, update=update)
        inputs = np.array(self.backend.read(self._saved.inputs[0]))
        tokens = [token for piece in batch.pieces for token in piece.tokens]
        self.backend.embed(self.rows.rows.tokens, self.model.embedding, self._saved.inputs[0])
        plain = np.array(self.backend.read(self._saved.inputs[0]))
        assert np.allclose(inputs[len(tokens) :], plain[len(tokens) :])
        lengths = [len(piece.tokens) for piece in batch.pieces]
        seen.append((lengths, (inputs - plain)[: len(tokens)], plain))

    monkeypatch.setattr(TrainingState, "forward_backward", watched)
    train(model, ROWS, LoRAConfig(rank=2), CONFIG)
    assert len(seen) == 2
    for lengths, noise, _ in seen:
        assert len(lengths) > 1
        for length, part in zip(lengths, np.split(noise, np.cumsum(lengths)[:-1]), strict=True):
            bound = 5.0 / np.sqrt(length * model.config.hidden_size)
            assert 0.95 * bound < np.abs(part).max() <= 1.001 * bound
            assert abs(part.mean()) < 0.1 * bound
            assert part.std() == pytest.approx(bound / np.sqrt(3), rel=0.1)
    assert not np.allclose(seen[0][1][:20], seen[1][1][:20])


def test_noise_changes_training_but_not_what_is_measured(model: Model) -> None:
    heard: list[Heard] = []
    start = strong_adapter(model)
    for alpha in (0.0, 5.0, 5.0):
        heard.append(Heard())
        config = replace(CONFIG, neftune_alpha=alpha)
        train(model, ROWS, config=config, adapter=start, eval_data=ROWS, callbacks=[heard[-1]])
    assert heard[0].evals[0] == heard[1].evals[0]
    assert heard[0].steps[0] != heard[1].steps[0]
    assert heard[1].steps == heard[2].steps


def test_without_it_no_buffer_is_made(numpy_model: Model) -> None:
    adapter = Adapter.create(numpy_model)
    states: list[Any] = [numpy_model.training_state(adapter, 64, noisy=noisy)[1] for noisy in (False, True)]
    assert states[0].noise is None
    assert states[1].noise.shape == (64, numpy_model.config.hidden_size)
