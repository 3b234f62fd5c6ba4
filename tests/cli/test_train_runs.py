"""``tritune train`` over several runs: killed and resumed, repeated from its folder, with held-out rows."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tritune
from command_line import Cli, finish, start
from tiny_text import write_rows
from tritune.training.checkpoint import list_checkpoints

WEIGHTS = "adapter_model.safetensors"
FLAGS = (
    "--device", "numpy", "--rank", "4", "--max-steps", "24", "--batch-tokens", "64", "--max-seq-len", "64",
    "--dropout", "0.1", "--lr", "1e-2", "--log-every", "4", "--save-every", "1", "--keep", "2", "--eval-split", "2",
    "--eval-every", "5",
)  # fmt: skip


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Rows of several micro-batches."""
    return write_rows(tmp_path / "many.jsonl", 12)


@pytest.fixture
def train(cli: Cli, tiny: Path, many: Path, tmp_path: Path) -> Cli:
    """A run into ``out``, unless other flags follow."""
    return lambda *more: cli("train", "-m", tiny, "-d", many, "-o", tmp_path / "out", *FLAGS, *more)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of a kind in the log, times left out."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    times = ("seconds", "tokens_per_second")
    return [{k: v for k, v in r.items() if k not in times} for r in records if r["event"] == kind]


def test_killed_at_any_moment_and_resumed_it_ends_with_the_same_bits(
    train: Cli, tiny: Path, many: Path, tmp_path: Path
) -> None:
    """kill -9, four times, at random moments; most fall into the writing of a checkpoint."""
    assert train().code == 0
    out = tmp_path / "killed"
    arguments = ("train", "-m", tiny, "-d", many, "-o", out, *FLAGS, "--resume", "auto")
    moments = random.Random(time.time_ns())
    kills, reached = 0, 0
    for _ in range(4):
        process = start(*arguments)
        begun = (out / "log.jsonl").stat().st_mtime_ns if out.exists() else 0
        while process.poll() is None:  # until it trains
            if out.exists() and (out / "log.jsonl").exists() and (out / "log.jsonl").stat().st_mtime_ns != begun:
                break
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.4))
        process.kill()
        kills += finish(process).code == -9
        reached = max([reached, *(step for step, _ in list_checkpoints(out))])
    assert kills
    assert reached
    result = finish(start(*arguments))
    assert result.code == 0, result.err
    for name in (WEIGHTS, "adapter_config.json", f"checkpoint-24/{WEIGHTS}"):
        assert (out / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name
    for kind in ("step", "eval"):
        assert events(out, kind) == events(tmp_path / "out", kind)
    assert not list(out.glob(".*"))


def test_the_folder_of_a_run_repeats_it_bit_for_bit(train: Cli, cli: Cli, tmp_path: Path) -> None:
    assert train("--rank-pattern", "q_proj=2", "--alpha-pattern", "down_proj=3", "--lora-plus-ratio", "4").code == 0
    again = cli("train", "-c", tmp_path / "out" / "config.yaml", "-o", tmp_path / "again")
    assert again.code == 0, again.err
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (tmp_path / "out" / WEIGHTS).read_bytes()
    assert events(tmp_path / "again", "step") == events(tmp_path / "out", "step")
    assert (tmp_path / "again" / "config.yaml").read_bytes() == (tmp_path / "out" / "config.yaml").read_bytes()
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert "q_proj" in str(config["rank_pattern"])
    told = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert told["packages"]["numpy"] == np.__version__
    assert told["backend"] == "numpy"


def test_a_run_from_an_adapter_is_repeated_too(cli: Cli, tiny: Path, many: Path, adapter: Path, tmp_path: Path) -> None:
    flags = ("-m", tiny, "-d", many, "--device", "numpy", "--max-steps", "2")
    assert cli("train", *flags, "-a", adapter, "-o", tmp_path / "out").code == 0
    again = cli("train", "-c", tmp_path / "out" / "config.yaml", "-o", tmp_path / "again")
    assert again.code == 0, again.err
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (tmp_path / "out" / WEIGHTS).read_bytes()


def test_every_setting_stands_in_the_folder_of_a_run(train: Cli, tmp_path: Path) -> None:
    assert train("--max-steps", "1").code == 0
    written = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    expected = {**vars(tritune.TrainConfig()), **vars(tritune.LoRAConfig())}
    assert expected.keys() - written.keys() == {"layers"}  # all of them
    assert (written["lr"], written["max_steps"], written["micro_batch_tokens"]) == (1e-2, 1, 64)


def test_resume_takes_the_settings_of_the_run(train: Cli, cli: Cli, tmp_path: Path) -> None:
    assert train("--max-steps", "3", "--schedule", "constant").code == 0
    longer = cli("train", "--resume", tmp_path / "out" / "checkpoint-3", "--max-steps", "5")
    assert longer.code == 0, longer.err
    assert "the run goes on with other settings: max_steps 5 (was 3)" in longer.err
    assert longer.out.splitlines()[0] == f"adapter: {tmp_path / 'out'}"
    assert train("--max-steps", "5", "--schedule", "constant", "-o", tmp_path / "straight").code == 0
    names = [tmp_path / run / "checkpoint-5" / WEIGHTS for run in ("out", "straight")]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_a_resume_with_another_rank_is_one_line(train: Cli, tmp_path: Path) -> None:
    assert train("--max-steps", "2").code == 0
    before = (tmp_path / "out" / WEIGHTS).read_bytes()
    error = train("--max-steps", "2", "--resume", "auto", "--rank", "8").error
    assert "rank 8 (was 4)" in error
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == before


def test_auto_does_not_write_over_an_adapter_that_has_no_checkpoint(
    cli: Cli, tiny: Path, many: Path, adapter: Path, tmp_path: Path
) -> None:
    before = (adapter / WEIGHTS).read_bytes()
    result = cli("train", "-m", tiny, "-d", many, "-o", adapter, *FLAGS, "--resume", "auto")
    assert "--overwrite" in result.error
    assert (adapter / WEIGHTS).read_bytes() == before


def test_held_out_rows_of_a_file_and_samples_are_shown(train: Cli, tmp_path: Path) -> None:
    held_out = write_rows(tmp_path / "held_out.jsonl", 3)
    result = train(
        "--eval-split", "0", "--eval-data", held_out, "--max-steps", "2", "--eval-steps", "1",
        "--sample-prompt", "hello 1", "--sample-tokens", "3",
    )  # fmt: skip
    assert result.code == 0, result.err
    evals = events(tmp_path / "out", "eval")
    assert [record["step"] for record in evals] == [0, 1, 2]
    shown = " ".join(result.err.split())
    for record in evals:
        assert f"step {record['step']} held-out loss {record['eval_loss']:.4f}" in shown
    assert len(events(tmp_path / "out", "sample")) == 3
    assert "lowest held-out loss" in shown


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--resume", "nowhere"], ["nowhere", "checkpoint"]),
        (["--eval-split", "0", "--eval-data", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["--eval-split", "12"], ["12", "nothing to train on"]),
        (["--eval-split", "-1"], ["eval_split", "-1"]),
        (["--keep", "0"], ["keep", "0"]),
        (["--patience", "-1"], ["patience", "-1"]),
        (["--micro-batch-tokens", "65"], ["micro_batch_tokens", "65"]),
        (["--rank-pattern", "q_proj"], ["--rank-pattern", "q_proj"]),
        (["--rank-pattern", "q_proj=x"], ["--rank-pattern", "q_proj=x"]),
        (["--rank-pattern", "q_prj=4"], ["rank_pattern", "q_prj"]),
        (["--lora-plus-ratio", "0"], ["lora_plus_ratio", "0"]),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    train: Cli, flags: list[str], words: list[str], tmp_path: Path
) -> None:
    error = train(*flags).error
    assert all(word in error for word in words), error
    assert not (tmp_path / "out").exists()
