"""Micro-batches: as many tokens as fit the memory, and the step stays the same however it is split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiny_chat import chat_rows, open_chat_model
from tritune import Adapter, LoRAConfig, Model, OutOfMemoryError, TrainConfig, train
from tritune.backends.numpy import NumpyBackend
from tritune.training import Callback, RunStart, StepLog, memory, run
from tritune.training.config import micro_batches_of

ROWS = chat_rows(24)
LORA = LoRAConfig(rank=4, alpha=8)
CONFIG = TrainConfig(lr=1e-3, max_steps=3, batch_tokens=512, max_seq_len=64, log_every=1, warmup=0)


class Heard(Callback):
    """Notes, and the losses of the steps."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.logs: list[StepLog] = []

    def on_start(self, start: RunStart) -> None:
        self.notes = list(start.notes)

    def on_log(self, log: StepLog) -> None:
        self.logs.append(log)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("rows", [64, 200, 512])
def test_the_estimate_is_what_a_state_takes(model_path: Path, rows: int, recompute: bool) -> None:
    backend = NumpyBackend()
    model = open_chat_model(model_path, backend)
    adapter = Adapter.create(model, LORA)
    before = backend.stats.bytes_allocated
    model.training_state(adapter, rows, max_sequences=8, recompute=recompute)
    taken = backend.stats.bytes_allocated - before
    assert memory.training_bytes(model.config, adapter, rows, recompute=recompute) == pytest.approx(taken, rel=0.03)


def test_a_batch_that_does_not_fit_is_split_and_told(
    numpy_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = Adapter.create(numpy_model, LORA)
    room = memory.training_bytes(numpy_model.config, adapter, 200)
    monkeypatch.setattr(run, "free_memory", lambda: int(room / memory.SHARE) + 1)
    heard = Heard()
    train(numpy_model, ROWS, LORA, CONFIG, output=tmp_path, callbacks=[heard])
    assert "batch_tokens 512: more than the memory holds at once, so in parts of 128" in heard.notes
    assert "micro_batch_tokens: 128\n" in (tmp_path / "config.yaml").read_text()
    assert max(log.rows for log in heard.logs) > 3 * 128


def test_a_device_that_refuses_gets_smaller_parts(numpy_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Model.training_state
    asked: list[int] = []

    def refusing(self: Model, adapter: Adapter, max_rows: int, **options: object) -> object:
        asked.append(max_rows)
        if max_rows > 150:
            raise OutOfMemoryError("no room")
        return real(self, adapter, max_rows, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "training_state", refusing)
    train(numpy_model, ROWS, LORA, CONFIG)
    assert asked == [512, 256, 128]
    asked.clear()
    with pytest.raises(OutOfMemoryError):  # what was asked for by name is not changed
        train(numpy_model, ROWS, LORA, replace(CONFIG, micro_batch_tokens=512))
    assert asked == [512]
    with pytest.raises(OutOfMemoryError):  # a row is never split
        monkeypatch.setattr(Model, "training_state", lambda *_, **__: refusing(numpy_model, None, 999))  # type: ignore[arg-type]
        train(numpy_model, ROWS, LORA, CONFIG)


@pytest.mark.parametrize(
    ("batch", "micro", "accumulation", "expected"),
    [(1024, 0, 1, 1), (1024, 1024, 3, 3), (1024, 512, 1, 2), (1000, 300, 2, 8), (1024, 1023, 1, 2)],
)
def test_micro_batches_of_a_step(batch: int, micro: int, accumulation: int, expected: int) -> None:
    config = TrainConfig(batch_tokens=batch, micro_batch_tokens=micro, grad_accumulation=accumulation)
    assert micro_batches_of(config) == expected


def test_parts_give_the_step_of_the_whole(model: Model) -> None:
    """All rows in one batch, or in parts: the same tokens, divided by their number."""
    whole, parts = Heard(), Heard()
    adapter = train(model, ROWS[:8], LORA, replace(CONFIG, batch_tokens=256, max_steps=1), callbacks=[whole])
    small = replace(CONFIG, batch_tokens=256, micro_batch_tokens=128, max_steps=1)
    split = train(model, ROWS[:8], LORA, small, callbacks=[parts])
    assert whole.logs[0].tokens == parts.logs[0].tokens
    assert whole.logs[0].loss == pytest.approx(parts.logs[0].loss, rel=1e-4)
    for name, tensor in split.tensors().items():
        np.testing.assert_allclose(tensor, adapter.tensors()[name], atol=2e-5, err_msg=name)


def test_free_memory_is_known_here() -> None:
    free = memory.free_memory()
    assert free is None or free > 1 << 20
