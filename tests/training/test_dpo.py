"""A run of DPO: what it learns, tells, keeps and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_chat import chat_rows, strong_adapter
from tritune import ConfigError, DataError, LoRAConfig, Model, TrainConfig, train
from tritune.training import Callback, StepLog
from tritune.training.dpo import sigmoid_loss

PAIRS = [
    {
        "prompt": [{"role": "user", "content": f"hello {n}"}],
        "chosen": [{"role": "assistant", "content": "I am fine, thank you."}],
        "rejected": [{"role": "assistant", "content": "It's a story " * (1 + n % 3)}],
    }
    for n in range(12)
]
CONFIG = TrainConfig(
    method="dpo", lr=1e-2, max_steps=12, batch_tokens=256, max_seq_len=64, log_every=1, grad_accumulation=2, warmup=0.0
)
LORA = LoRAConfig(rank=4, alpha=8)


class Logs(Callback):
    """Keeps the logs; stops after a step; counts submits and device objects."""

    def __init__(self, model: Model, stop: int = -1) -> None:
        self.stats, self.stop = model.backend.stats, stop
        self.logs: list[StepLog] = []
        self.submits: list[int] = []
        self.objects: list[int] = []

    def on_step(self, step: int) -> None:
        self.submits.append(self.stats.submits)
        self.objects.append(self.stats.objects)
        if step == self.stop:
            raise KeyboardInterrupt

    def on_log(self, log: StepLog) -> None:
        self.logs.append(log)


def test_the_chosen_answers_become_likelier(model: Model) -> None:
    heard = Logs(model)
    train(model, PAIRS, LORA, CONFIG, callbacks=[heard])
    first, last = heard.logs[0], heard.logs[-1]
    assert first.loss == pytest.approx(np.log(2), abs=1e-6)
    assert first.metrics["rewards/chosen"] == first.metrics["rewards/margins"] == 0
    assert last.loss < 0.5 * first.loss
    assert last.metrics["rewards/accuracies"] == 1
    assert last.metrics["rewards/margins"] == pytest.approx(
        last.metrics["rewards/chosen"] - last.metrics["rewards/rejected"], rel=1e-6
    )
    assert last.metrics["logps/rejected"] < first.metrics["logps/rejected"]


def test_no_device_object_is_made_in_the_step_loop(model: Model) -> None:
    heard = Logs(model)
    train(model, PAIRS, replace(LORA, dropout=0.1), replace(CONFIG, log_every=100, max_steps=4), callbacks=[heard])
    assert heard.objects == [heard.objects[0]] * 4
    assert [after - before for before, after in pairwise(heard.submits)] == [6] * 3


def test_the_reference_takes_no_second_copy_of_the_base(numpy_model: Model) -> None:
    from tritune.lora import Adapter, AdapterPool
    from tritune.training.dpo import PreferenceObjective

    stats = numpy_model.backend.stats
    adapter = Adapter.create(numpy_model, LORA)
    _, state = numpy_model.training_state(adapter, 64, exclusive=True)
    before = stats.bytes_allocated
    PreferenceObjective(state, None, 0.1)
    assert stats.bytes_allocated == before
    PreferenceObjective(state, AdapterPool.for_adapters(numpy_model.backend, [adapter]), 0.1)
    assert stats.bytes_allocated - before <= 2 * adapter.parameters.nbytes


def test_a_run_from_an_adapter_is_held_to_that_adapter(numpy_model: Model) -> None:
    heard = Logs(numpy_model)
    start = strong_adapter(numpy_model)
    trained = train(numpy_model, PAIRS, None, replace(CONFIG, max_steps=3), adapter=start, callbacks=[heard])
    assert heard.logs[0].metrics["rewards/chosen"] == 0
    assert heard.logs[0].loss == pytest.approx(np.log(2), abs=1e-6)
    assert not np.array_equal(trained.parameters, start.parameters)


def test_held_out_pairs_and_the_log_file(numpy_model: Model, tmp_path: Path) -> None:
    config = replace(CONFIG, log_every=4, eval_every=6)
    train(numpy_model, PAIRS[:9], LORA, config, eval_data=PAIRS[9:], output=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    evals = [line for line in lines if line["event"] == "eval"]
    assert [line["step"] for line in steps] == [4, 8, 12]
    assert [line["step"] for line in evals] == [0, 6, 12]
    assert evals[0]["eval_loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert evals[0]["eval_tokens"] == 3
    assert evals[0]["eval_perplexity"] is None
    assert evals[-1]["rewards/accuracies"] == 1
    assert {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins"} <= set(steps[0])


def test_a_stopped_and_resumed_run_equals_a_straight_one(numpy_model: Model, tmp_path: Path) -> None:
    start = strong_adapter(numpy_model)
    config = replace(CONFIG, max_steps=6)
    straight = train(numpy_model, PAIRS, None, config, adapter=start)
    with pytest.raises(KeyboardInterrupt):
        train(numpy_model, PAIRS, None, config, adapter=start, output=tmp_path, callbacks=[Logs(numpy_model, 3)])
    resumed = train(numpy_model, PAIRS, None, config, adapter=start, output=tmp_path, resume="auto")
    np.testing.assert_array_equal(resumed.parameters, straight.parameters)


def test_a_resumed_run_keeps_its_reference(numpy_model: Model, tmp_path: Path) -> None:
    """Without the adapter that it started from, the reference would silently be the base."""
    config = replace(CONFIG, max_steps=6)
    with pytest.raises(KeyboardInterrupt):
        start = strong_adapter(numpy_model)
        train(numpy_model, PAIRS, None, config, adapter=start, output=tmp_path, callbacks=[Logs(numpy_model, 3)])
    with pytest.raises(ConfigError, match="reference"):
        train(numpy_model, PAIRS, None, config, output=tmp_path, resume="auto")


@pytest.mark.parametrize(
    ("rows", "config", "said"),
    [
        (chat_rows(3), CONFIG, "method dpo trains rows of pairs"),
        (PAIRS, replace(CONFIG, method="sft"), "trained with method dpo"),
    ],
)
def test_rows_of_the_other_method_are_refused(numpy_model: Model, rows: Any, config: TrainConfig, said: str) -> None:
    with pytest.raises(DataError, match=said):
        train(numpy_model, rows, LORA, config)


@pytest.mark.parametrize("change", [{"method": "ppo"}, {"dpo_beta": 0.0}, {"dpo_label_smoothing": 0.5}])
def test_settings_out_of_range(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        TrainConfig(**change)


@pytest.mark.parametrize("margin", [-1e4, -30.0, 0.0, 30.0, 1e4])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_large_margin_overflows_nothing_and_the_slope_is_the_derivative(margin: float, smoothing: float) -> None:
    def loss(value: float) -> float:
        return float(sigmoid_loss(np.array([value, 0.0]), np.zeros(2), 0.5, smoothing).loss[0])

    found = sigmoid_loss(np.array([margin, 0.0]), np.zeros(2), 0.5, smoothing)
    assert np.isfinite(found.loss).all()
    assert found.slope[0] == pytest.approx((loss(margin + 1e-4) - loss(margin - 1e-4)) / 2e-4, abs=1e-6)
