"""``tritune demo``: what it shows and leaves, on a few steps; the whole of it in a slow test."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import tritune
from command_line import Cli
from tritune.assets import DEMO_HELDOUT_ROWS, DEMO_ROWS
from tritune.cli import demo as module


def questions(file: Path) -> set[str]:
    return {json.loads(line)["messages"][0]["content"] for line in file.read_text(encoding="utf-8").splitlines()}


def test_questions_are_held_out() -> None:
    assert {*module.QUESTIONS, module.NEXT_QUESTION} <= questions(DEMO_HELDOUT_ROWS)
    assert not {*module.QUESTIONS, module.NEXT_QUESTION} & questions(DEMO_ROWS)


def test_shows_both_answers_and_leaves_an_adapter(
    cli: Cli, model: tritune.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the tiny model in the place of the built-in one, which a slow test has."""
    loaded: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tritune, "load", lambda *given, **_: loaded.append(given) or model)
    monkeypatch.chdir(tmp_path)
    result = cli("demo", "--steps", "2", "--device", "numpy")
    assert result.code == 0, result.err
    assert loaded == [(None, "numpy")]
    assert "NumPy" in result.err
    assert "before" in result.out
    assert all(question in result.out for question in module.QUESTIONS)
    tritune.Adapter.load(tmp_path / module.OUTPUT, model)
    commands = [shlex.split(line) for line in result.out.splitlines() if line.startswith("tritune ")]
    assert [command[1] for command in commands] == ["generate", "chat", "train"]
    assert cli("demo", "--steps", "1", "--device", "numpy").code == 0  # again, into its own folder


def test_other_folders_are_not_overwritten(cli: Cli, adapter: Path) -> None:
    before = (adapter / "adapter_model.safetensors").read_bytes()
    assert "--overwrite" in cli("demo", "--output", adapter, "--steps", "1").error
    assert (adapter / "adapter_model.safetensors").read_bytes() == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_behaviour_is_learned(cli: Cli, tmp_path: Path) -> None:
    result = cli("demo", "--device", "cpu", "--output", tmp_path / "out")
    assert result.code == 0, result.err
    rows = [row for row in result.out.splitlines() if row.startswith("│")]
    after = " ".join(row.split("│")[3].strip() for row in rows)
    before = " ".join(row.split("│")[2].strip() for row in rows)
    assert after.count("Arr, matey!") == len(module.QUESTIONS)
    assert after.count("Yo ho ho!") >= len(module.QUESTIONS) - 1
    assert "matey" not in before
    loss_before, loss_after = float(before.split()[-1]), float(after.split()[-1])
    assert loss_after < 0.3 * loss_before
