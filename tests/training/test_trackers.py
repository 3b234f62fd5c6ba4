"""Trackers behind their one interface: what they are sent, what each writes, and what is missing."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tritune.errors import ConfigError
from tritune.training.events import EvalLog, RunEnd, RunStart, StepLog
from tritune.training.trackers import TrackerCallback, make_trackers

START = RunStart("CPU", 8, 4, 100, "", [])


def step(number: int, loss: float) -> StepLog:
    return StepLog(number, 4, 0.5, loss, 1e-4, 0.25, 64, 80, 1.0, 80.0, 0)


def feed(callback: TrackerCallback, start: RunStart = START) -> None:
    """A short run: one step whose loss is not a number, one evaluation."""
    callback.on_start(start)
    callback.on_log(step(1, 2.5))
    callback.on_log(step(2, math.nan))
    callback.on_eval(EvalLog(2, 1.5, math.exp(1.5), 30, 0.1, True))
    callback.on_end(RunEnd(2, "finished"))


class Heard:
    """A tracker that remembers what it was sent."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails_at = fails_at

    def start(self, config: Mapping[str, Any], step: int) -> None:
        self.calls.append(("start", dict(config), step))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise OSError("no\nroom")
        self.calls.append(("log", step, dict(values)))

    def finish(self) -> None:
        self.calls.append(("finish",))


def test_every_tracker_gets_the_same_numbers_and_no_nan() -> None:
    heard = Heard()
    feed(TrackerCallback([heard], {"rank": 4}))
    assert heard.calls[0] == ("start", {"rank": 4, "device": "CPU", "trainable_parameters": 100}, 0)
    assert heard.calls[1][:2] == ("log", 1)
    assert heard.calls[1][2]["train/loss"] == 2.5 and heard.calls[1][2]["train/learning_rate"] == 1e-4
    assert "train/loss" not in heard.calls[2][2] and heard.calls[2][2]["train/grad_norm"] == 0.25
    assert heard.calls[3] == ("log", 2, {"eval/loss": 1.5, "eval/perplexity": math.exp(1.5)})
    assert heard.calls[4] == ("finish",)


def test_a_tracker_that_fails_does_not_end_the_run_nor_the_other_trackers() -> None:
    bad, good = Heard(fails_at=1), Heard()
    with pytest.warns(UserWarning, match=r"Heard stops: no room; the run goes on"):
        feed(TrackerCallback([bad, good], {}))
    assert len(bad.calls) == 1 and len(good.calls) == 5


def test_names_that_are_not_known_and_packages_that_are_missing_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_trackers("none", tmp_path) == []
    with pytest.raises(ConfigError, match="expected some of tensorboard, wandb, trackio, or none, found 'mlflow'"):
        make_trackers("tensorboard,mlflow", tmp_path)
    with pytest.raises(ConfigError, match="found ' , '"):
        make_trackers(" , ", tmp_path)
    for name in ("tensorboard", "wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=rf"the package {name} is missing .*; pip install 'tritune\[{name}\]'"):
            make_trackers(name, tmp_path)


# Each in a process of its own: these packages start threads, warn, and leave handlers behind.
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_trackers import START, feed
from dataclasses import replace
from tritune.training.trackers import TrackerCallback, make_trackers
folder = Path(sys.argv[2])
folder.mkdir(exist_ok=True)
feed(TrackerCallback(make_trackers(sys.argv[1], folder), {"rank": 4}))
"""
READ_TENSORBOARD = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in sorted(events.Tags()["scalars"]):
    print(tag, [(e.step, round(e.value, 4)) for e in events.Scalars(tag)])
print(events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode())
"""


def run(script: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "stops" not in done.stderr, done.stderr
    return done.stdout


def test_tensorboard_reads_back_what_was_sent(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run(SCRIPT, "tensorboard", str(tmp_path / "run"), str(Path(__file__).parent))
    said = run(READ_TENSORBOARD, str(tmp_path / "run"))
    assert "eval/loss [(2, 1.5)]" in said
    assert "train/loss [(1, 2.5)]" in said
    assert "train/grad_norm [(1, 0.25), (2, 0.25)]" in said
    assert '"rank": 4' in said


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_writes_a_run_without_the_network(tmp_path: Path) -> None:
    run(
        SCRIPT, "wandb", str(tmp_path / "run"), str(Path(__file__).parent),
        WANDB_MODE="offline", WANDB_SILENT="true", WANDB_CACHE_DIR=str(tmp_path), WANDB_CONFIG_DIR=str(tmp_path),
        WANDB_DATA_DIR=str(tmp_path), WANDB_ERROR_REPORTING="false",
    )  # fmt: skip
    written = list((tmp_path / "run").glob("wandb/offline-run-*/run-*.wandb"))
    assert len(written) == 1
    content = written[0].read_bytes()
    assert b"eval/perplexity" in content and b"train/learning_rate" in content and b"2.5" in content


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_keeps_a_run_in_its_local_data_base(tmp_path: Path) -> None:
    run(SCRIPT, "trackio", str(tmp_path / "run"), str(Path(__file__).parent), TRACKIO_DIR=str(tmp_path / "base"))
    written = b"".join(path.read_bytes() for path in (tmp_path / "base").glob("tritune*"))
    assert b"train/learning_rate" in written and b"eval/perplexity" in written
