"""Held-out rows: their loss, the best adapter, early stopping, samples."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiny_chat import chat_rows, open_chat_model
from tritune import Adapter, ConfigError, LoRAConfig, Model, TrainConfig, train
from tritune.backends.base import Backend
from tritune.training import Callback, EvalLog, RunEnd, RunStart, SampleLog, StepLog, heldout, mean_loss

ROWS = [{"instruction": f"say {n}", "output": "ok " * (1 + 5 * (n % 3))} for n in range(12)]
HELD_OUT = chat_rows(7)
LORA = LoRAConfig(rank=4, alpha=8)
CONFIG = TrainConfig(
    lr=1e-2, max_steps=6, batch_tokens=96, max_seq_len=64, log_every=1, warmup=0, schedule="constant", eval_every=2
)


class Heard(Callback):
    """Keeps what it is told about held-out rows."""

    def __init__(self) -> None:
        self.evals: list[EvalLog] = []
        self.samples: list[SampleLog] = []
        self.saved: list[tuple[str, int]] = []
        self.ends: list[RunEnd] = []
        self.starts: list[RunStart] = []

    def on_start(self, start: RunStart) -> None:
        self.starts.append(start)

    def on_eval(self, log: EvalLog) -> None:
        self.evals.append(log)

    def on_sample(self, sample: SampleLog) -> None:
        self.samples.append(sample)

    def on_save(self, path: Path, step: int) -> None:
        self.saved.append((path.name, step))

    def on_end(self, end: RunEnd) -> None:
        self.ends.append(end)


def scripted(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Make the evaluations of a run give these losses, the one before the first step included."""
    left = iter(losses)
    monkeypatch.setattr(heldout.HeldOut, "loss", lambda *_: (next(left), 10))


def test_the_valid_file_of_a_folder_is_held_out(model: Model, tmp_path: Path) -> None:
    for split, rows in (("train", ROWS), ("valid", HELD_OUT)):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, named = Heard(), Heard()
    train(model, tmp_path, LORA, CONFIG, callbacks=[found])
    train(model, tmp_path / "train.jsonl", LORA, CONFIG, eval_data=tmp_path / "valid.jsonl", callbacks=[named])
    assert found.evals
    assert [log.eval_loss for log in found.evals] == [log.eval_loss for log in named.evals]


def test_the_loss_is_measured_before_on_the_way_and_after(model: Model) -> None:
    heard = Heard()
    adapter = train(model, ROWS, LORA, replace(CONFIG, eval_every=4), eval_data=HELD_OUT, callbacks=[heard])
    assert [log.step for log in heard.evals] == [0, 4, 6]
    assert heard.starts[0].num_eval_examples == 7
    fresh = Adapter.create(model, LORA, seed=CONFIG.seed)
    expected = [mean_loss(model, fresh, HELD_OUT, CONFIG), mean_loss(model, adapter, HELD_OUT, CONFIG)]
    best = min(heard.evals[1:], key=lambda log: log.eval_loss)
    np.testing.assert_allclose([heard.evals[0].eval_loss, best.eval_loss], expected, rtol=1e-5)
    for log in heard.evals:
        assert log.eval_perplexity == math.exp(log.eval_loss)
        assert log.eval_tokens == heard.evals[0].eval_tokens > 7


def test_a_mean_of_means_is_not_the_loss(model: Model) -> None:
    """Rows of few and of many trained tokens, in two micro-batches: every token weighs the same."""
    rows = [{"instruction": "say", "output": text} for text in ("a", "ok " * 18, "b")]
    adapter = Adapter.create(model, LORA)
    separate = [mean_loss(model, adapter, [row], CONFIG) for row in rows]
    heard = Heard()
    small = replace(CONFIG, max_steps=1, batch_tokens=64, max_seq_len=64)
    train(model, ROWS, LORA, small, eval_data=rows, callbacks=[heard])
    counts = [Counted.tokens(model, row) for row in rows]
    assert max(counts) > 5 * min(counts)
    mean = float(np.average(separate, weights=counts))
    assert heard.evals[0].eval_loss == pytest.approx(mean, rel=1e-5)
    assert abs(float(np.mean(separate)) - mean) > 1e-3
    assert heard.evals[0].eval_tokens == sum(counts)


class Counted:
    """Trained tokens of a row."""

    @staticmethod
    def tokens(model: Model, row: dict[str, str]) -> int:
        heard = Heard()
        train(model, ROWS, LORA, replace(CONFIG, max_steps=1), eval_data=[row], callbacks=[heard])
        return heard.evals[0].eval_tokens


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_measuring_leaves_no_trace_in_what_is_trained(model: Model, dropout: float) -> None:
    lora = replace(LORA, dropout=dropout)
    config = replace(CONFIG, grad_accumulation=2, log_every=3)
    heard, measured = Heard(), Losses()
    plain = Losses()
    expected = train(model, ROWS, lora, config, callbacks=[plain])
    found = train(model, ROWS, lora, replace(config, eval_every=1), eval_data=HELD_OUT, callbacks=[heard, measured])
    if heard.ends[0].best_step == config.max_steps:
        np.testing.assert_array_equal(found.parameters, expected.parameters)
    assert measured.values == plain.values
    assert len(heard.evals) == config.max_steps + 1


class Losses(Callback):
    """The loss of every log."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, log: object) -> None:
        self.values.append(log.loss)  # type: ignore[attr-defined]


def test_nothing_is_dropped_while_it_is_measured(model: Model) -> None:
    heard = [Heard(), Heard()]
    for callback, dropout in zip(heard, (0.0, 0.5), strict=True):
        lora = replace(LORA, dropout=dropout)
        start = Adapter.create(model, lora, seed=3)
        start.parameters[:] = np.random.default_rng(0).normal(0, 0.05, start.parameters.size)
        train(model, ROWS, config=replace(CONFIG, max_steps=1), adapter=start, eval_data=HELD_OUT, callbacks=[callback])
    assert heard[0].evals[0].eval_loss == heard[1].evals[0].eval_loss
    assert heard[0].evals[1].eval_loss != heard[1].evals[1].eval_loss


def test_no_device_object_is_made_by_an_evaluation(model_path: Path, backend: Backend) -> None:
    model = open_chat_model(model_path, backend)

    class Objects(Callback):
        def __init__(self) -> None:
            self.counts: list[int] = []

        def on_start(self, start: RunStart) -> None:
            self.counts.append(backend.stats.objects)

        def on_eval(self, log: EvalLog) -> None:
            self.counts.append(backend.stats.objects)

    heard = Objects()
    train(model, ROWS, replace(LORA, dropout=0.1), CONFIG, eval_data=HELD_OUT, callbacks=[heard])
    assert len(heard.counts) == 5
    assert len(set(heard.counts)) == 1


def test_rows_can_be_held_out_of_the_data(numpy_model: Model) -> None:
    heard = Heard()
    train(numpy_model, ROWS, LORA, replace(CONFIG, eval_split=0.25), callbacks=[heard])
    assert (heard.starts[0].num_examples, heard.starts[0].num_eval_examples) == (9, 3)
    with pytest.raises(ConfigError, match="either eval_data or eval_split"):
        train(numpy_model, ROWS, LORA, replace(CONFIG, eval_split=2), eval_data=HELD_OUT)


def test_the_best_and_not_the_last_adapter_is_kept(
    numpy_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [1.0, 3.0, 2.0, 2.5])
    heard = Heard()
    adapter = train(numpy_model, ROWS, LORA, CONFIG, eval_data=HELD_OUT, output=tmp_path, callbacks=[heard])
    best = train(numpy_model, ROWS, LORA, replace(CONFIG, max_steps=4))
    last = train(numpy_model, ROWS, LORA, CONFIG)
    np.testing.assert_array_equal(adapter.parameters, best.parameters)
    assert [log.best for log in heard.evals] == [False, True, True, False]
    assert heard.ends == [RunEnd(6, "finished", 4, 2.0)]
    assert heard.saved == [("checkpoint-2", 2), ("checkpoint-4", 4), ("checkpoint-6", 6), (tmp_path.name, 4)]
    for path, expected in ((tmp_path, best), (tmp_path / "checkpoint-4", best), (tmp_path / "checkpoint-6", last)):
        np.testing.assert_array_equal(Adapter.load(path, numpy_model).parameters, expected.parameters)


def test_a_nan_counts_as_best_never(numpy_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [1.0, 2.0, math.nan, math.inf])
    heard = Heard()
    train(numpy_model, ROWS, LORA, CONFIG, eval_data=HELD_OUT, output=tmp_path, callbacks=[heard])
    assert [log.best for log in heard.evals] == [False, True, False, False]
    assert heard.ends == [RunEnd(6, "finished", 2, 2.0)]
    records = [
        json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "log.jsonl").read_text().splitlines()
    ]
    assert [r["eval_loss"] for r in records if r["event"] == "eval"] == [1.0, 2.0, None, None]


def test_a_loss_that_falls_no_more_ends_the_run(numpy_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [1.0, 3.0, 2.0, 2.5, 2.1, 2.2])
    heard = Heard()
    config = replace(CONFIG, max_steps=20, patience=2)
    adapter = train(numpy_model, ROWS, LORA, config, eval_data=HELD_OUT, callbacks=[heard])
    assert heard.ends == [RunEnd(8, "patience", 4, 2.0)]
    best = train(numpy_model, ROWS, LORA, replace(CONFIG, max_steps=4))
    np.testing.assert_array_equal(adapter.parameters, best.parameters)


def test_the_newest_checkpoints_and_the_best_one_stay(
    numpy_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [9.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0])
    config = replace(CONFIG, max_steps=6, eval_every=1, save_every=1, keep=2)
    train(numpy_model, ROWS, LORA, config, eval_data=HELD_OUT, output=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*checkpoint*")) == [
        "checkpoint-1", "checkpoint-5", "checkpoint-6",
    ]  # fmt: skip


def test_time_spent_on_held_out_rows_and_checkpoints_is_not_counted(
    numpy_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation that takes half a second, with a checkpoint inside of it: steps are as fast as without."""

    def slow(*_: object) -> tuple[float, int]:
        time.sleep(0.5)
        return next(losses), 10

    seconds: list[float] = []  # seconds a step

    class Seconds(Callback):
        def on_log(self, log: StepLog) -> None:
            seconds.append(log.rows / log.tokens_per_second)

    losses = iter(range(9, 0, -1))
    monkeypatch.setattr(heldout.HeldOut, "loss", slow)
    begun = time.perf_counter()
    config = replace(CONFIG, max_steps=4, eval_every=1)
    train(numpy_model, ROWS, LORA, config, eval_data=HELD_OUT, output=tmp_path, callbacks=[Seconds()])
    rest = time.perf_counter() - begun - 5 * 0.5
    assert min(seconds) > 1e-3  # no step of NumPy's is faster
    assert sum(seconds) < rest


def test_prompts_are_answered_at_each_evaluation(model: Model, tmp_path: Path) -> None:
    heard = Heard()
    config = replace(CONFIG, eval_every=3, sample_prompts=("hello 1", "say 2"), sample_tokens=4)
    adapter = train(model, ROWS, LORA, config, eval_data=HELD_OUT, output=tmp_path, callbacks=[heard])
    assert [(sample.step, sample.prompt) for sample in heard.samples] == [
        (step, prompt) for step in (0, 3, 6) for prompt in ("hello 1", "say 2")
    ]
    if heard.ends[0].best_step == 6:
        assert heard.samples[-1].text == model.generate("say 2", adapter, max_tokens=4)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [r["text"] for r in records if r["event"] == "sample"] == [sample.text for sample in heard.samples]
