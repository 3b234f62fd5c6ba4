"""Curves read from logs and drawn."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from tritune.cli.main import main
from tritune.errors import ConfigError, InputError
from tritune.training.curves import plot_runs, read_log


def write_log(folder: Path, steps: int = 5, tail: str = "") -> Path:
    """A run's folder with a log of some steps and two evaluations."""
    folder.mkdir()
    lines = [{"event": "start", "total_steps": steps}, {"event": "eval", "step": 0, "eval_loss": 3.0}]
    for step in range(1, steps + 1):
        loss = None if step == 2 else 3 / step
        numbers = {"loss": loss, "lr": 1e-4 * step, "grad_norm": 0.5, "tokens_per_second": 100.0}
        lines.append({"event": "step", "step": step, **numbers})
    lines.append({"event": "eval", "step": steps, "eval_loss": 1.0})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return folder


def test_a_log_gives_its_curves_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    log = read_log(write_log(tmp_path / "run", tail='{"event": "step", "st'))
    assert log.name == str(tmp_path / "run")
    steps, losses = log.curve("step", "loss")
    assert (steps, losses[0]) == ([1, 2, 3, 4, 5], 3.0) and math.isnan(losses[1])
    assert log.curve("eval", "eval_loss") == ([0, 5], [3.0, 1.0])
    assert log.curve("step", "other") == ([], [])


def test_what_is_no_log_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "run", tail="rubbish\n")
    with pytest.raises(InputError, match=r"log\.jsonl:9: expected one JSON object a line"):
        read_log(folder)
    with pytest.raises(InputError, match="no log of a run"):
        read_log(tmp_path / "none")
    (tmp_path / "empty.jsonl").write_text('{"event": "start"}\n')
    with pytest.raises(InputError, match="holds no step of a run yet"):
        read_log(tmp_path / "empty.jsonl")


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_runs_are_drawn_over_each_other(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    runs = [str(write_log(tmp_path / name, steps)) for name, steps in (("first", 5), ("second", 9))]
    output = tmp_path / f"curves.{kind}"
    assert main(["plot", *runs, "-o", str(output)]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    data = output.read_bytes()
    if kind == "png":
        assert data.startswith(b"\x89PNG") and len(data) > 10_000
    else:
        text = data.decode()
        # A label is drawn as shapes, with its text in a comment.
        for label in ("first", "second", "learning rate", "gradient norm", "tokens a second", "loss"):
            assert label in text


def test_what_plot_cannot_do_is_told_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_log(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"expected a name that ends in \.png, \.svg, \.pdf"):
        plot_runs([run], tmp_path / "curves.gif")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plot", str(run), "-o", str(tmp_path / "curves.png")]) != 0
    assert "pip install 'tritune[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "curves.png").exists()
