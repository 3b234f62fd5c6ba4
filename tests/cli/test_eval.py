"""``tritune eval``: a table for people, JSON for scripts, and what cannot be measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tritune
from command_line import Cli


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [{"question": f"hello {n}", "choices": ["fine", "story"], "answer": n % 2} for n in range(5)]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Once upon a time there were 123 cats and 4567 dogs.\n" * 8)
    return path


def read_json(cli: Cli, *flags: str | Path) -> dict[str, Any]:
    result = cli("eval", "--device", "numpy", "--json", *flags)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_adapters_beside_the_base_in_one_table(cli: Cli, tiny: Path, adapter: Path, text: Path) -> None:
    result = cli("eval", "-m", tiny, "-d", text, "--device", "numpy", "-a", adapter)
    assert result.code == 0, result.err
    title, header, base, mine, difference = (line for line in result.out.splitlines() if any(map(str.isalpha, line)))
    assert title.startswith("perplexity over")
    assert [name.strip() for name in header.strip("┃").split("┃")][:2] == ["adapter", "loss"]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in (base, mine, difference)]
    assert [row[0] for row in cells] == ["base", str(adapter), "Δ base"]
    assert float(cells[2][1]) == pytest.approx(float(cells[1][1]) - float(cells[0][1]), abs=2e-4)


def test_a_narrow_terminal_cuts_no_number(
    cli: Cli, tiny: Path, adapter: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in cli("eval", "-m", tiny, "-d", text, "--device", "numpy", "-a", adapter).out


def test_json_equals_the_library(cli: Cli, tiny: Path, adapter: Path, text: Path, model: tritune.Model) -> None:
    loaded = tritune.Adapter.load(adapter, model)
    expected = tritune.evaluate(model, text, {"base": None, str(adapter): loaded}, max_length=64, stride=16)
    found = read_json(cli, "-m", tiny, "-d", text, "-a", adapter, "--max-length", "64", "--stride", "16")
    assert found["results"] == expected.results
    assert (found["task"], found["windows"], found["model"]) == ("perplexity", expected.count, model.name)


def test_questions_and_rows(cli: Cli, tiny: Path, questions: Path, rows: Path) -> None:
    found = read_json(cli, "-m", tiny, "-d", questions, "--limit", "4")
    assert (found["task"], found["questions"]) == ("choices", 4)
    assert {"acc", "acc_stderr", "acc_norm", "acc_norm_stderr"} == set(found["results"]["base"])
    in_turns = read_json(cli, "-m", tiny, "-d", questions, "--apply-chat-template")
    assert in_turns["task"] == "choices"
    assert read_json(cli, "-m", tiny, "-d", rows)["task"] == "loss"
    assert read_json(cli, "-m", tiny, "-d", rows, "--task", "perplexity")["task"] == "perplexity"
    assert "± " in cli("eval", "-m", tiny, "-d", questions, "--device", "numpy").out


def test_infinity_and_nan_are_null_in_json() -> None:
    from tritune.cli.eval import _facts
    from tritune.evaluation import Evaluation

    found = _facts(
        Evaluation("loss", 1, "rows", {"base": {"loss": float("nan"), "perplexity": float("inf")}}, ()), "m", "d"
    )
    assert found["results"]["base"] == {"loss": None, "perplexity": None}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-d", "nowhere.txt"), "nowhere.txt: cannot be read"),
        (("-d", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
        ((), "Missing option '-d' / '--data'"),
        (("-d", "TEXT", "--stride", "0"), "stride: expected 1 …"),
        (("-d", "TEXT", "--max-length", "5000"), "max_length: expected 2 … 256"),
        (("-d", "TEXT", "--limit", "0"), "limit: expected"),
        (("-d", "TEXT", "--stride", "abc"), "'abc' is not a valid integer"),
        (("-d", "TEXT", "--adapter", "nowhere"), "nowhere"),
        (("-d", "TEXT", "-a", "x", "-a", "x"), "x: is given twice"),
        (("-d", "TEXT", "-a", "base"), "names the base"),
        (("-d", "TEXT", "--no-such-flag"), "No such option"),
    ],
)
def test_wrong_input_is_one_line(cli: Cli, tiny: Path, text: Path, flags: tuple[str, ...], said: str) -> None:
    shown = [str(text) if flag == "TEXT" else flag for flag in flags]
    assert said in cli("eval", "-m", tiny, "--device", "numpy", *shown).error


def test_a_line_that_is_not_json_is_named(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{bad\n")
    assert "broken.jsonl:1: not valid JSON" in cli("eval", "-m", tiny, "--device", "numpy", "-d", broken).error
