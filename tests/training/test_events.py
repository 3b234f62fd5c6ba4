"""What a run tells: the order of its events, the log file, the terminal."""

from __future__ import annotations

import io
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from rich.console import Console

from tiny_chat import chat_rows
from tritune import Adapter, LoRAConfig, Model, TrainConfig, train
from tritune.training import Callback, RunEnd, RunStart, StepLog, TerminalProgress
from tritune.training.config import learning_rate

ROWS = chat_rows(10)


def row(question: str, answer: str) -> dict[str, object]:
    """A row of one question and one answer."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


LORA = LoRAConfig(rank=2, alpha=4, target_modules=["q_proj", "down_proj"])
CONFIG = TrainConfig(lr=1e-3, max_steps=5, batch_tokens=64, max_seq_len=64, log_every=2, save_every=2)


class Events(Callback):
    """Writes down everything that it is told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.start: RunStart | None = None
        self.logs: list[StepLog] = []
        self.saved: list[tuple[Path, int]] = []

    def on_start(self, start: RunStart) -> None:
        self.names.append("start")
        self.start = start

    def on_step(self, step: int) -> None:
        self.names.append(f"step {step}")

    def on_log(self, log: StepLog) -> None:
        self.names.append(f"log {log.step}")
        self.logs.append(log)

    def on_save(self, path: Path, step: int) -> None:
        assert (path / "adapter_model.safetensors").is_file()
        self.names.append(f"save {step}")
        self.saved.append((path, step))

    def on_end(self, end: RunEnd) -> None:
        self.names.append("end")


def test_events_come_in_order_and_checkpoints_can_be_loaded(model: Model, tmp_path: Path) -> None:
    heard = Events()
    adapter = train(model, ROWS, LORA, CONFIG, output=tmp_path / "run", callbacks=[heard])
    assert heard.names == [
        "start", "step 1", "step 2", "log 2", "save 2", "step 3", "step 4", "log 4", "save 4", "step 5", "log 5",
        "save 5", "save 5", "end",
    ]  # fmt: skip
    run = tmp_path / "run"
    assert heard.saved == [(run / "checkpoint-2", 2), (run / "checkpoint-4", 4), (run / "checkpoint-5", 5), (run, 5)]
    loaded = [Adapter.load(path, model) for path, _ in heard.saved]
    assert (loaded[-1].parameters == adapter.parameters).all()
    assert not (loaded[0].parameters == loaded[1].parameters).all()
    straight = train(model, ROWS, LORA, replace(CONFIG, max_steps=2, schedule="constant", warmup=0))
    again = train(model, ROWS, LORA, replace(CONFIG, schedule="constant", warmup=0), output=tmp_path / "constant")
    assert (Adapter.load(tmp_path / "constant" / "checkpoint-2", model).parameters == straight.parameters).all()
    assert not (again.parameters == straight.parameters).all()


def test_the_numbers_of_a_log(model: Model) -> None:
    heard = Events()
    train(model, ROWS, LORA, CONFIG, callbacks=[heard])
    start = heard.start
    assert start is not None
    assert start.num_examples == 10
    assert start.total_steps == 5
    # per layer: q (in 32, out 32) and down (in 48, out 32), rank 2
    assert start.trainable_parameters == 2 * 2 * ((32 + 32) + (48 + 32))
    assert start.device == model.backend.description
    assert list(start.notes) == []
    for log, steps in zip(heard.logs, (2, 2, 1), strict=True):
        assert log.total_steps == 5
        assert log.lr == learning_rate(CONFIG, log.step - 1, 5)
        assert 0 < log.loss < 12
        assert log.grad_norm > 0
        assert steps <= log.tokens < log.rows <= steps * 64
        assert log.tokens_per_second > 0
        assert log.skipped_steps == 0
    assert heard.logs[0].seconds <= heard.logs[1].seconds <= heard.logs[2].seconds


def test_the_loss_of_a_log_is_the_mean_over_its_tokens(numpy_model: Model) -> None:
    """Two steps a log give the mean of one step a log, weighted by the trained tokens."""
    every, second = Events(), Events()
    rows = [{"instruction": f"say {n}", "output": "ok " * (1 + 7 * (n % 3))} for n in range(9)]
    train(numpy_model, rows, LORA, replace(CONFIG, log_every=1, max_steps=4), callbacks=[every])
    train(numpy_model, rows, LORA, replace(CONFIG, log_every=2, max_steps=4), callbacks=[second])
    for index, log in enumerate(second.logs):
        pair = every.logs[2 * index : 2 * index + 2]
        tokens = [one.tokens for one in pair]
        assert log.tokens == sum(tokens)
        assert log.loss == pytest.approx(sum(one.loss * one.tokens for one in pair) / sum(tokens), rel=1e-5)


def test_the_first_example_shows_what_is_trained(numpy_model: Model) -> None:
    heard = Events()
    train(numpy_model, ROWS, LORA, replace(CONFIG, max_steps=1), callbacks=[heard])
    assert heard.start is not None
    assert heard.start.first_example == (
        "<|im_start|>user\nhello 0<|im_end|>\n<|im_start|>assistant\n⟦I am fine, thank you. 0<|im_end|>⟧"
    )


def test_rows_that_were_cut_or_left_out_are_told(numpy_model: Model) -> None:
    long_prompt, long_answer = row("tell me " * 40, "yes"), row("tell me", "zyxw " * 60)
    heard = Events()
    train(numpy_model, [*ROWS, long_prompt, long_answer], LORA, replace(CONFIG, max_steps=1), callbacks=[heard])
    assert heard.start is not None
    assert heard.start.num_examples == 12
    assert list(heard.start.notes) == [
        "1 rows were cut from the left of the prompt to fit 64 tokens",
        "1 rows were left out: their answer does not fit 64 tokens or teaches nothing (one is at row 12)",
    ]


def test_the_log_file_holds_one_valid_object_a_line(model: Model, tmp_path: Path) -> None:
    heard = Events()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").write_text("left by another run\n")
    train(model, ROWS, LORA, CONFIG, output=tmp_path / "run", callbacks=[heard])
    lines = (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [record["event"] for record in records] == [
        "start", "step", "save", "step", "save", "step", "save", "save", "end",
    ]  # fmt: skip
    assert records[0] == {
        "event": "start",
        "device": model.backend.description,
        "examples": 10,
        "eval_examples": 0,
        "total_steps": 5,
        "trainable_parameters": 2 * 2 * ((32 + 32) + (48 + 32)),
    }
    steps = [record for record in records if record["event"] == "step"]
    for record, log in zip(steps, heard.logs, strict=True):
        names = {field.name for field in fields(StepLog)}
        assert set(record) == {"event", *names} - {"metrics"}  # their own names instead, of which there are none
        assert record["loss"] == log.loss
        assert record["step"] == log.step
    assert records[-2] == {"event": "save", "step": 5, "path": str(tmp_path / "run")}
    end = {"step": 5, "reason": "finished", "best_step": None, "best_eval_loss": None, "notes": []}
    assert records[-1] == {"event": "end", **end}


def test_the_log_file_is_written_while_the_run_goes_on(numpy_model: Model, tmp_path: Path) -> None:
    class Reader(Callback):
        def __init__(self) -> None:
            self.counts: list[int] = []

        def on_step(self, step: int) -> None:
            self.counts.append(len((tmp_path / "log.jsonl").read_text().splitlines()))

    reader = Reader()
    train(numpy_model, ROWS, LORA, replace(CONFIG, save_every=0), output=tmp_path, callbacks=[reader])
    assert reader.counts == [1, 1, 2, 2, 3]


def test_the_terminal_shows_what_is_trained(numpy_model: Model, tmp_path: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, width=200, force_terminal=False)
    rows = [row("is [red] a colour?", "[bold]yes[/bold]"), *ROWS]
    train(numpy_model, rows, LORA, CONFIG, output=tmp_path / "run", callbacks=[TerminalProgress(console)])
    shown = text.getvalue()
    assert f"device: {numpy_model.backend.description}" in shown
    assert "trainable parameters: 576 · examples: 11 · optimizer steps: 5" in shown
    assert "is [red] a colour?<|im_end|>" in shown  # not read as rich's markup
    assert "⟦[bold]yes[/bold]<|im_end|>⟧" in shown
    assert "step 2/5 loss " in shown
    assert "tokens/s" in shown
    assert f"saved the adapter after step 5: {tmp_path / 'run'}" in shown
    assert "\x1b[" not in shown


def test_the_terminal_bar_counts_to_the_end_and_stops(numpy_model: Model) -> None:
    text = io.StringIO()
    console = Console(file=text, width=160, force_terminal=True)
    progress = TerminalProgress(console)
    train(numpy_model, ROWS, LORA, CONFIG, callbacks=[progress])
    shown = text.getvalue()
    assert "5/5" in shown
    assert "left" in shown
    assert "loss" in shown
    assert progress._progress is None


def test_a_very_long_example_is_cut_for_the_terminal() -> None:
    text = io.StringIO()
    progress = TerminalProgress(Console(file=text, width=100))
    progress.on_start(RunStart("cpu", 1, 1, 1, "ab " * 3000 + "⟦yes⟧", []))
    progress.on_end(RunEnd(1, "finished"))
    assert len(text.getvalue()) < 2000
    assert "…" in text.getvalue()
