"""Rows on their way through a run: packed or not, of long files, of several sources, and gone on with."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from tiny_chat import chat_rows, strong_adapter
from tritune import Adapter, DataError, LoRAConfig, Model, TrainConfig, train
from tritune.data import Dataset, DataStream, RowEncoder, open_rows, source, stream
from tritune.training import Callback, StepLog, TerminalProgress
from tritune.training.objective import micro_batch

LORA = LoRAConfig(rank=2, alpha=4)
CONFIG = TrainConfig(lr=1e-2, batch_tokens=128, max_seq_len=64, log_every=1, warmup=0, epochs=2)
ROWS = chat_rows(40)
VARIED = [
    {"messages": [{"role": "user", "content": "hello " * (n % 9 + 1)}, *row["messages"][1:]]}
    for n, row in enumerate(chat_rows(24))
]


class Logs(Callback):
    """Keeps all logs; stops the run after a step."""

    def __init__(self, stop: int = 0) -> None:
        self.logs: list[StepLog] = []
        self.stop = stop

    def on_log(self, log: StepLog) -> None:
        self.logs.append(log)

    def on_step(self, step: int) -> None:
        if step == self.stop:
            raise KeyboardInterrupt


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WINDOW", 2)


def test_packed_and_unpacked_batches_have_the_same_loss_per_token(numpy_model: Model) -> None:
    encoder = RowEncoder(numpy_model.tokenizer, numpy_model.template, 64)
    _, state = numpy_model.training_state(strong_adapter(numpy_model), 128)
    found: list[tuple[float, int, Counter[int]]] = []
    for packing in (True, False):
        loss = tokens = 0.0
        sizes = Counter[int]()
        state.clear()
        for batch in DataStream(Dataset(open_rows(VARIED), encoder), 128, 0, packing=packing).epoch():
            state.forward_loss(micro_batch(batch, state.max_rows))
            tokens += batch.num_targets
            sizes[len(batch.q_start) - 1] += 1
        loss = state.read_loss()[0]
        found.append((loss / tokens, int(tokens), sizes))
    (packed, count, packed_sizes), (apart, same_count, sizes) = found
    assert count == same_count
    assert abs(packed / apart - 1) < 1e-5
    assert packed_sizes != sizes, "the rows were batched in another way"


def test_no_packing_reaches_the_run(numpy_model: Model) -> None:
    heard = [Logs(), Logs()]
    for logs, packing in zip(heard, (True, False), strict=True):
        train(numpy_model, VARIED, LORA, replace(CONFIG, epochs=1, packing=packing), callbacks=[logs])
    assert sum(log.tokens for log in heard[0].logs) == sum(log.tokens for log in heard[1].logs)
    assert [log.tokens for log in heard[0].logs] != [log.tokens for log in heard[1].logs]


def test_the_schedule_of_a_long_file_counts_rows(numpy_model: Model, small_windows: None) -> None:
    """Not packed steps, whose number nobody knows before all rows were tokenised."""
    logs = Logs()
    train(numpy_model, ROWS, LORA, CONFIG, callbacks=[logs])
    rates = [log.lr for log in logs.logs]
    assert rates[0] == CONFIG.lr
    assert all(a > b for a, b in pairwise(rates))
    assert rates[-1] < 0.05 * CONFIG.lr
    assert logs.logs[-1].epoch == 2
    assert logs.logs[-1].step == logs.logs[-1].total_steps
    assert all(log.step < log.total_steps for log in logs.logs[:-1])
    for log, rate in zip(logs.logs, rates[1:], strict=False):
        assert rate == pytest.approx(CONFIG.lr * 0.5 * (1 + np.cos(np.pi * log.epoch / 2)), rel=1e-3)
    once = Logs()
    train(numpy_model, ROWS, LORA, replace(CONFIG, epochs=1), callbacks=[once])
    assert sum(log.tokens for log in logs.logs) == 2 * sum(log.tokens for log in once.logs), "each row twice"


@pytest.mark.parametrize("stop", [1, 5, 9])
def test_a_stopped_run_over_a_long_file_goes_on_with_the_next_row(
    stop: int, numpy_model: Model, tmp_path: Path, small_windows: None
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    straight, resumed = Logs(), Logs()
    expected = train(numpy_model, file, LORA, CONFIG, callbacks=[straight])
    with pytest.raises(KeyboardInterrupt):
        train(numpy_model, file, LORA, CONFIG, output=tmp_path / "run", callbacks=[Logs(stop)])
    found = train(numpy_model, file, LORA, CONFIG, output=tmp_path / "run", resume="auto", callbacks=[resumed])
    assert found.parameters.tobytes() == expected.parameters.tobytes()
    assert [log.lr for log in resumed.logs] == [log.lr for log in straight.logs][-len(resumed.logs) :]
    assert resumed.logs[-1].step == straight.logs[-1].step


def test_a_file_that_was_moved_is_still_the_same_rows(numpy_model: Model, tmp_path: Path) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text("\n".join(map(json.dumps, ROWS)))
    with pytest.raises(KeyboardInterrupt):
        train(numpy_model, old, LORA, CONFIG, output=tmp_path / "run", callbacks=[Logs(2)])
    old.rename(new)
    train(numpy_model, new, LORA, CONFIG, output=tmp_path / "run", resume="auto")


def test_a_row_that_cannot_be_used_loses_nothing_that_was_trained(
    numpy_model: Model, tmp_path: Path, small_windows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a long file it is met in the middle of the run."""
    monkeypatch.setattr(source, "HELD_ROWS", 10)
    file = tmp_path / "rows.jsonl"
    order = open_rows(ROWS).order(CONFIG.seed, 0).tolist()
    rows = [json.dumps(row) for row in ROWS]
    rows[order[-1]] = '{"messages": 3}'
    file.write_text("\n".join(rows))
    with pytest.raises(DataError, match=rf"rows\.jsonl: line {order[-1] + 1}: 'messages' is a number, expected a list"):
        train(numpy_model, file, LORA, CONFIG, output=tmp_path / "run", callbacks=[Logs()])
    steps = [path.name for path in (tmp_path / "run").glob("checkpoint-*")]
    assert len(steps) == 1
    assert int(steps[0].removeprefix("checkpoint-")) > 2
    assert Adapter.load(tmp_path / "run", numpy_model).parameters.any()


def test_rows_of_a_long_file_that_were_left_out_are_counted_in_the_end(numpy_model: Model, small_windows: None) -> None:
    long = {"messages": [ROWS[0]["messages"][0], {"role": "assistant", "content": "no " * 90}]}
    order = open_rows(ROWS).order(CONFIG.seed, 0).tolist()
    rows = [long if index in (order[0], order[-1]) else row for index, row in enumerate(ROWS)]
    console = Console(file=io.StringIO(), width=200)
    train(numpy_model, rows, LORA, replace(CONFIG, epochs=1), callbacks=[TerminalProgress(console)])
    said = console.file.getvalue()
    assert re.search(r"note: 1 rows \(of \d+ read so far\) were left out: their answer does not fit 64 tokens", said)
    assert "note: 2 rows were left out: their answer does not fit 64 tokens" in said


def test_several_sources_with_weights_are_written_down(numpy_model: Model, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for file, first in zip(files, (0, 20), strict=True):
        file.write_text("\n".join(map(json.dumps, ROWS[first : first + 20])))
    config = replace(CONFIG, max_steps=1)
    train(numpy_model, [f"{files[0]}=0.25", f"{files[1]}=0.75"], LORA, config, output=tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["data"] == [f"{files[0]}=0.25", f"{files[1]}=0.75"]


def test_rows_are_held_out_of_a_file(numpy_model: Model, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    train_rows, held = open_rows(file).hold_out(0.25, seed=3)
    assert (len(train_rows), len(held)) == (30, 10)
    lines = [[rows[index].line for index in range(len(rows))] for rows in (train_rows, held)]
    assert sorted(lines[0] + lines[1]) == list(range(1, 41))
    assert lines[0] == sorted(lines[0])


def test_pairs_are_not_trained_as_if_they_were_answers(numpy_model: Model) -> None:
    with pytest.raises(DataError, match=r"rows of pairs \(chosen, rejected\)"):
        train(numpy_model, [{"prompt": "a", "chosen": "b", "rejected": "c"}], LORA, CONFIG)


def test_rows_that_are_repeated_for_their_share_fit_the_buffers(numpy_model: Model, tmp_path: Path) -> None:
    """An epoch of few rows may have more tokens than the rows: a source with a large share is taken several times."""
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    long = {"messages": [ROWS[0]["messages"][0], {"role": "assistant", "content": "no " * 20}]}
    files[0].write_text(json.dumps(long))
    files[1].write_text("\n".join(map(json.dumps, ROWS[1:4])))
    config = replace(CONFIG, max_steps=2, batch_tokens=512, max_seq_len=128)
    train(numpy_model, [f"{files[0]}=0.9", f"{files[1]}=0.1"], LORA, config)
