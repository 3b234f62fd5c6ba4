"""Stopping and going on: a resumed run ends with the bits of one that was never stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_chat import chat_rows
from tritune import Adapter, ConfigError, LoRAConfig, Model, TrainConfig, train
from tritune.training import Callback, RunStart, StepLog
from tritune.training.checkpoint import STATE_NAME

ROWS = [{"instruction": f"say {n}", "output": "ok " * (1 + 5 * (n % 3))} for n in range(12)]
HELD_OUT = chat_rows(3)
LORA = LoRAConfig(rank=4, alpha=8, dropout=0.2)
CONFIG = TrainConfig(
    lr=1e-2, max_steps=40, batch_tokens=96, micro_batch_tokens=48, max_seq_len=48, log_every=3, warmup=0.1,
    grad_accumulation=1, eval_every=6, lora_plus_ratio=4.0,
)  # fmt: skip
TIMES = ("seconds", "tokens_per_second")


class StopsAt(Callback):
    """Interrupts a run after a step; keeps its logs."""

    def __init__(self, step: int = -1) -> None:
        self.step = step
        self.logs: list[StepLog] = []
        self.start: RunStart | None = None

    def on_start(self, start: RunStart) -> None:
        self.start = start

    def on_step(self, step: int) -> None:
        if step == self.step:
            raise KeyboardInterrupt

    def on_log(self, log: StepLog) -> None:
        self.logs.append(log)


def stopped(model: Model, output: Path, step: int, config: TrainConfig = CONFIG, **more: Any) -> None:
    """A run that is interrupted after a step."""
    with pytest.raises(KeyboardInterrupt):
        train(model, ROWS, LORA, config, output=output, callbacks=[StopsAt(step)], **more)


def records(folder: Path) -> list[dict[str, Any]]:
    """What the log file says, times left out."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    return [{k: v for k, v in record.items() if k not in TIMES} for record in found]


def test_forty_steps_equal_thirteen_and_the_rest(model: Model, tmp_path: Path) -> None:
    """Moments, schedule, order of the rows, dropout, sums for the log, the best adapter: all go on."""
    quick = model.backend.name == "cpu"
    config = CONFIG if quick else replace(CONFIG, max_steps=6, eval_every=2, log_every=2)
    at, last = (13, 40) if quick else (3, 6)
    straight = train(model, ROWS, LORA, config, eval_data=HELD_OUT, output=tmp_path / "straight")
    stopped(model, tmp_path / "run", at, config, eval_data=HELD_OUT)
    heard = StopsAt()
    found = train(
        model, ROWS, LORA, config, eval_data=HELD_OUT, output=tmp_path / "run", resume="auto", callbacks=[heard]
    )
    assert heard.start is not None
    assert heard.start.resumed_step == at
    if model.backend.name != "webgpu":
        np.testing.assert_array_equal(found.parameters, straight.parameters)
        for folder in ("", f"checkpoint-{last}"):
            names = ["adapter_model.safetensors", "adapter_config.json"]
            for name in names:
                pair = [tmp_path / run / folder / name for run in ("straight", "run")]
                assert pair[0].read_bytes() == pair[1].read_bytes(), name
        kinds = ("step", "eval")
        told = [[r for r in records(tmp_path / run) if r["event"] in kinds] for run in ("straight", "run")]
        assert told[0] == told[1]
    else:
        np.testing.assert_allclose(found.parameters, straight.parameters, atol=1e-3)
    assert [r["event"] for r in records(tmp_path / "run")].count("resume") == 1


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("step", [1, 4, 7])
def test_resuming_anywhere_equals_a_straight_run(
    numpy_model: Model, tmp_path: Path, step: int, accumulation: int
) -> None:
    config = replace(CONFIG, max_steps=8, grad_accumulation=accumulation)
    config = replace(config, neftune_alpha=5.0)
    straight = train(numpy_model, ROWS, LORA, config)
    stopped(numpy_model, tmp_path, step, config)
    found = train(numpy_model, ROWS, LORA, config, output=tmp_path, resume=tmp_path / f"checkpoint-{step}")
    np.testing.assert_array_equal(found.parameters, straight.parameters)


def test_a_run_that_is_stopped_twice_equals_a_straight_run(numpy_model: Model, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=9)
    stopped(numpy_model, tmp_path, 2, config)
    stopped(numpy_model, tmp_path, 5, config, resume="auto")
    found = train(numpy_model, ROWS, LORA, config, output=tmp_path, resume="auto")
    straight = train(numpy_model, ROWS, LORA, config)
    np.testing.assert_array_equal(found.parameters, straight.parameters)


def test_an_interrupt_inside_a_step_leaves_no_trace_of_the_half_step(numpy_model: Model, tmp_path: Path) -> None:
    """A signal between two micro-batches: the gradient of the first one is forgotten, and made again."""
    import os
    import signal

    from tritune.models.training_state import TrainingState

    config = replace(CONFIG, max_steps=6, grad_accumulation=2)
    straight = train(numpy_model, ROWS, LORA, config)
    real, calls = TrainingState.forward_backward, iter(range(1, 100))

    def signalled(self: TrainingState, batch: Any, *, update: bool = False) -> None:
        real(self, batch, update=update)
        if next(calls) == 14:  # the second of the fourth step's micro-batches
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainingState, "forward_backward", signalled)
        train(numpy_model, ROWS, LORA, config, output=tmp_path)
    assert (tmp_path / "checkpoint-3").is_dir()
    found = train(numpy_model, ROWS, LORA, config, output=tmp_path, resume="auto")
    np.testing.assert_array_equal(found.parameters, straight.parameters)


def test_a_finished_run_that_is_resumed_stays_as_it_is_and_can_be_prolonged(numpy_model: Model, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=3, schedule="constant", warmup=0)
    first = train(numpy_model, ROWS, LORA, config, output=tmp_path)
    again = train(numpy_model, ROWS, LORA, config, output=tmp_path, resume="auto")
    np.testing.assert_array_equal(again.parameters, first.parameters)
    heard = StopsAt()
    longer = replace(config, max_steps=5)
    found = train(numpy_model, ROWS, LORA, longer, output=tmp_path, resume="auto", callbacks=[heard])
    np.testing.assert_array_equal(found.parameters, train(numpy_model, ROWS, LORA, longer).parameters)
    assert heard.start is not None
    assert heard.start.notes[0] == "the run goes on with other settings: max_steps 5 (was 3)"


def test_other_settings_are_named_in_one_line(numpy_model: Model, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=4)
    stopped(numpy_model, tmp_path, 2, config)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as caught:
        other = replace(config, seed=7, lr=1.0)
        train(numpy_model, ROWS, replace(LORA, rank=2), other, output=tmp_path, resume="auto")
    message = str(caught.value)
    assert "\n" not in message
    assert "lr 1.0 (was 0.01), seed 7 (was 42), rank 2 (was 4)" in message
    with pytest.raises(ConfigError, match=r"data \(other rows\)"):
        train(numpy_model, ROWS[:-1], LORA, config, output=tmp_path, resume="auto")
    with pytest.raises(ConfigError, match=r"data \(other rows\)"):
        train(numpy_model, ROWS[::-1], LORA, config, output=tmp_path, resume="auto")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_auto_without_a_checkpoint_begins_at_the_beginning(numpy_model: Model, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=2)
    heard = StopsAt()
    found = train(numpy_model, ROWS, LORA, config, output=tmp_path / "run", resume="auto", callbacks=[heard])
    np.testing.assert_array_equal(found.parameters, train(numpy_model, ROWS, LORA, config).parameters)
    assert heard.start is not None
    assert "no checkpoint" in heard.start.notes[0]


def test_what_cannot_be_resumed_is_said_in_one_line(numpy_model: Model, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=2)
    train(numpy_model, ROWS, LORA, config, output=tmp_path / "run")
    state = tmp_path / "run" / "checkpoint-2" / STATE_NAME
    for resume, words in (
        (tmp_path / "none", "found none"),
        (tmp_path / "run", "an adapter without a training state"),
        ("auto", "looks for checkpoints in the output folder"),
    ):
        with pytest.raises(ConfigError, match=words):
            train(numpy_model, ROWS, LORA, config, resume=resume)
    whole = state.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        b"",
        whole.replace(b"micro", b"nacho"),
        whole.replace(b"version", b"vision_"),
    ):
        state.write_bytes(damaged)
        with pytest.raises(ConfigError) as caught:
            train(numpy_model, ROWS, LORA, config, resume=state.parent)
        assert str(state.parent) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_half_written_checkpoint_is_ignored(numpy_model: Model, tmp_path: Path) -> None:
    """One that was never renamed does not count, and is cleared away; a damaged one gives way to an older one."""
    config = replace(CONFIG, max_steps=6, save_every=2)
    straight = train(numpy_model, ROWS, LORA, config)
    stopped(numpy_model, tmp_path, 4, config)
    half = tmp_path / ".checkpoint-6.0123abcd.tmp"
    half.mkdir()
    (half / STATE_NAME).write_bytes(b"half")
    (tmp_path / "checkpoint-4" / STATE_NAME).write_bytes(b"half")
    log = tmp_path / "log.jsonl"
    log.write_text(log.read_text() + '{"event": "st')
    heard = StopsAt()
    found = train(numpy_model, ROWS, LORA, config, output=tmp_path, resume="auto", callbacks=[heard])
    assert heard.start is not None
    assert heard.start.resumed_step == 2
    assert "an older checkpoint is tried" in heard.start.notes[0]
    np.testing.assert_array_equal(found.parameters, straight.parameters)
    assert not half.exists()
    steps = [record["step"] for record in records(tmp_path) if record["event"] == "step"]
    assert steps == [3, 6]


def test_another_runs_checkpoints_are_neither_mixed_in_nor_lost(numpy_model: Model, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=4, save_every=1, keep=9)
    train(numpy_model, ROWS, LORA, config, output=tmp_path)
    with pytest.raises(ConfigError, match="holds checkpoint-1 of another run"):
        train(numpy_model, ROWS, LORA, replace(config, seed=1), output=tmp_path)
    with pytest.raises(ConfigError, match="holds checkpoint-3 of another run"):
        train(numpy_model, ROWS, LORA, config, output=tmp_path, resume=tmp_path / "checkpoint-2")
    again = replace(config, seed=1, max_steps=2)
    train(numpy_model, ROWS, LORA, again, output=tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]


def test_resuming_into_another_folder_leaves_the_first_alone(numpy_model: Model, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=4)
    stopped(numpy_model, tmp_path / "a", 2, config)
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    found = train(numpy_model, ROWS, LORA, config, output=tmp_path / "b", resume=tmp_path / "a" / "checkpoint-2")
    np.testing.assert_array_equal(found.parameters, train(numpy_model, ROWS, LORA, config).parameters)
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == before


def test_a_run_from_an_adapter_can_be_resumed(numpy_model: Model, tmp_path: Path) -> None:
    start = Adapter.create(numpy_model, LORA, seed=9)
    config = replace(CONFIG, max_steps=4)
    straight = train(numpy_model, ROWS, config=config, adapter=start)
    with pytest.raises(KeyboardInterrupt):
        train(numpy_model, ROWS, config=config, adapter=start, output=tmp_path, callbacks=[StopsAt(2)])
    found = train(numpy_model, ROWS, config=config, output=tmp_path, resume="auto")
    np.testing.assert_array_equal(found.parameters, straight.parameters)
    assert np.array_equal(Adapter.load(tmp_path / "start_adapter", numpy_model).parameters, start.parameters)
