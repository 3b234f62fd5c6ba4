"""How a run can end before its last step: an interrupt, gradients that are not finite, an adapter that is not."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiny_chat import chat_rows, strong_adapter
from tritune import Adapter, AdapterError, LoRAConfig, Model, TrainConfig, TrainingError, train
from tritune.lora import AdapterPool
from tritune.models.training_state import MicroBatch, TrainingState
from tritune.training import Callback, RunEnd, StepLog

ROWS = chat_rows(10)
LORA = LoRAConfig(rank=2, alpha=4)
CONFIG = TrainConfig(lr=1e-2, max_steps=6, batch_tokens=64, max_seq_len=64, log_every=1, schedule="constant", warmup=0)


class Interrupts(Callback):
    """Acts after a step; keeps what was told."""

    def __init__(self, at: int, by_signal: bool = False) -> None:
        self.at = at
        self.by_signal = by_signal
        self.saved: list[tuple[Path, int]] = []
        self.ended = 0

    def on_step(self, step: int) -> None:
        if step == self.at and self.by_signal:
            os.kill(os.getpid(), signal.SIGINT)
        elif step == self.at:
            raise KeyboardInterrupt

    def on_save(self, path: Path, step: int) -> None:
        self.saved.append((path, step))

    def on_end(self, end: RunEnd) -> None:
        self.ended += 1


def poison(monkeypatch: pytest.MonkeyPatch, steps: set[int], value: float = float("nan")) -> None:
    """Make the gradient of some micro-batches (counted from 1) not finite."""
    real, count = TrainingState.forward_backward, iter(range(1, 1000))

    def poisoned(self: TrainingState, batch: MicroBatch, *, update: bool = False) -> None:
        if next(count) in steps:
            self.backend.write(self.grads, np.full(self.grads.shape, value, np.float32))
        real(self, batch, update=update)

    monkeypatch.setattr(TrainingState, "forward_backward", poisoned)


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("by_signal", [False, True])
def test_an_interrupt_saves_what_was_trained_so_far(model: Model, tmp_path: Path, by_signal: bool) -> None:
    heard = Interrupts(at=3, by_signal=by_signal)
    with pytest.raises(KeyboardInterrupt):
        train(model, ROWS, LORA, CONFIG, output=tmp_path, callbacks=[heard])
    assert heard.saved == [(tmp_path / "checkpoint-3", 3), (tmp_path, 3)]
    assert heard.ended == 1
    expected = train(model, ROWS, LORA, replace(CONFIG, max_steps=3))
    np.testing.assert_array_equal(Adapter.load(tmp_path, model).parameters, expected.parameters)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert records[-2] == {"event": "save", "step": 3, "path": str(tmp_path)}
    assert (records[-1]["event"], records[-1]["step"], records[-1]["reason"]) == ("end", 3, "interrupted")


def test_an_interrupt_without_an_output_writes_nothing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    heard = Interrupts(at=1)
    with pytest.raises(KeyboardInterrupt):
        train(model, ROWS, LORA, CONFIG, callbacks=[heard])
    assert heard.saved == []
    assert list(tmp_path.iterdir()) == []


def test_the_model_is_usable_after_an_interrupt(model: Model) -> None:
    expected = train(model, ROWS, LORA, replace(CONFIG, max_steps=2))
    answer = model.generate("hello", max_tokens=5)
    with pytest.raises(KeyboardInterrupt):
        train(model, ROWS, LORA, CONFIG, callbacks=[Interrupts(at=2)])
    assert model.generate("hello", max_tokens=5) == answer
    again = train(model, ROWS, LORA, replace(CONFIG, max_steps=2))
    np.testing.assert_array_equal(again.parameters, expected.parameters)


# -- gradients that are not finite ------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_three_bad_steps_in_a_row_end_the_run(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    old = strong_adapter(model, rank=2)
    old.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    poison(monkeypatch, {2, 3, 4}, value)
    heard = Interrupts(at=-1)
    with pytest.raises(TrainingError, match=r"^step 4: the gradients of 3 steps in a row were not finite; .*$"):
        train(model, ROWS, LORA, CONFIG, output=tmp_path, callbacks=[heard])
    assert heard.saved == []
    assert heard.ended == 1
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    told = {"log.jsonl", "config.yaml", "environment.json"}
    assert {path.name for path in tmp_path.iterdir()} == before.keys() | told


def test_bad_steps_are_skipped_counted_and_leave_no_trace(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Logs(Callback):
        def __init__(self) -> None:
            self.logs: list[StepLog] = []

        def on_log(self, log: StepLog) -> None:
            self.logs.append(log)

    heard = Logs()
    with monkeypatch.context() as patch:
        poison(patch, {2, 3, 5})
        adapter = train(model, ROWS, LORA, CONFIG, output=tmp_path, callbacks=[heard])
    assert [log.skipped_steps for log in heard.logs] == [0, 1, 2, 2, 3, 3]
    assert np.isfinite(adapter.parameters).all()
    assert [bool(np.isnan(log.loss)) for log in heard.logs] == [False, True, True, False, True, False]
    text = (tmp_path / "log.jsonl").read_text()
    records = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [record["loss"] is None for record in records if record["event"] == "step"] == [
        False, True, True, False, True, False,
    ]  # fmt: skip


def test_the_loss_of_a_log_leaves_the_bad_steps_out(numpy_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    class Last(Callback):
        log: StepLog | None = None

        def on_log(self, log: StepLog) -> None:
            self.log = log

    heard = Last()
    poison(monkeypatch, {2})
    train(numpy_model, ROWS, LORA, replace(CONFIG, max_steps=3, log_every=3), callbacks=[heard])
    assert heard.log is not None
    assert 0 < heard.log.loss < 12
    assert heard.log.skipped_steps == 1


def test_an_adapter_that_is_not_finite_is_never_saved(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = AdapterPool.read

    def broken(self: AdapterPool) -> np.ndarray:
        values = real(self).copy()
        values[3] = np.inf
        return values

    monkeypatch.setattr(AdapterPool, "read", broken)
    start = strong_adapter(model, rank=2)
    before = start.parameters.copy()
    with pytest.raises(TrainingError, match="step 6: the adapter holds numbers that are not finite"):
        train(model, ROWS, config=CONFIG, adapter=start, output=tmp_path / "run")
    assert not (tmp_path / "run" / "adapter_config.json").exists()
    assert np.array_equal(start.parameters, before)


def test_an_enormous_rate_ends_in_an_error_and_not_in_an_adapter(model: Model, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="not finite"), np.errstate(all="ignore"):
        train(model, ROWS, LORA, replace(CONFIG, lr=3e38, max_steps=8), output=tmp_path / "run")
    assert not (tmp_path / "run" / "adapter_config.json").exists()


def test_an_adapter_of_another_size_is_refused_before_anything_is_written(model: Model, tmp_path: Path) -> None:
    from tiny_adapters import random_adapter, tiny_base

    other = random_adapter(tiny_base(layers=2))
    with pytest.raises(AdapterError, match="the adapter was made for hidden_size 36, this base has 32"):
        train(model, ROWS, config=CONFIG, adapter=other, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
