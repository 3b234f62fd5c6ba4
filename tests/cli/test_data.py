"""`tritune data check`: every mistake by its line, lengths, what is cut, and the mask token by token."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tritune.cli.main import main
from tritune.models import weights

TWO_TURNS = {
    "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "fine"},
        {"role": "user", "content": "how are you"},
        {"role": "assistant", "content": "fine, thank you"},
    ]
}


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def test_every_mistake_is_named_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [TWO_TURNS, {"messages": 3}, "", '{"messages": [', TWO_TURNS, {"text": "no messages"}]
    file = write(tmp_path / "rows.jsonl", rows)
    assert main(["data", "check", file]) == 2
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        f"{file}: line 2: 'messages' is a number, expected a list",
        f"{file}:4: not valid JSON (Expecting value)",
        f"{file}: line 6: no 'messages'",
        f"error: {file}: 3 of 5 rows cannot be used (each is named above)",
    ]
    assert "rows: 5 (2 chat) · unusable: 3" in out


def test_the_mask_printed_token_by_token_for_a_two_turn_chat_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first answer's token is trained, each end of turn too, and nothing else."""
    file = write(tmp_path / "rows.jsonl", [TWO_TURNS])
    assert main(["data", "check", file, "--tokens", "0", "--chat-template", "chatml"]) == 0
    lines = capsys.readouterr().out.split("first example (· seen, ✓ trained):\n")[1].splitlines()
    runs: list[tuple[str, str]] = []
    for line in lines:
        _, _, mark, text = line.split(maxsplit=3)
        text = ast.literal_eval(text)
        runs = [*runs[:-1], (mark, runs[-1][1] + text)] if runs and runs[-1][0] == mark else [*runs, (mark, text)]
    trained = [text for mark, text in runs if mark == "✓"]
    assert trained == ["fine<|im_end|>", "fine, thank you<|im_end|>"]
    assert "".join(text for _, text in runs) == (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nfine<|im_end|>\n"
        "<|im_start|>user\nhow are you<|im_end|>\n<|im_start|>assistant\nfine, thank you<|im_end|>"
    )


def test_lengths_and_what_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "a " * n, "completion": m * "b "} for n, m in [(3, 1)] * 6 + [(200, 1), (1, 200)]]
    file = write(tmp_path / "rows.jsonl", rows)
    assert main(["data", "check", file, "--max-seq-len", "32", "--tokens", "3"]) == 0
    out = capsys.readouterr().out
    assert "cut from the left of the prompt to fit 32 tokens: 1 (line 7)" in out
    assert "left out: the answer does not fit 32 tokens, or teaches nothing: 1 (line 8)" in out
    assert "examples: 7 · tokens:" in out
    assert "longest 32 (line 7)" in out
    bars = [line.split() for line in out.splitlines() if "█" in line]
    assert [(bar[2], int(bar[3]), len(bar[4])) for bar in bars][-1] == ("32", 1, round(40 / 6))
    assert sum(int(bar[3]) for bar in bars) == 7
    assert "more tokens (--tokens 0 shows all)" in out


def test_pairs_and_several_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = {"prompt": "q", "chosen": "yes", "rejected": "no"}
    files = [write(tmp_path / name, [pair] * 2) for name in ("a.jsonl", "b.jsonl")]
    assert main(["data", "check", *files]) == 0
    out = capsys.readouterr().out
    assert "rows: 4 (4 preference) · unusable: 0" in out
    found = re.search(r"examples: 4 · tokens: (\d+), of which trained: (\d+)\nlength: mean ([\d.]+)", out)
    assert found is not None
    assert int(found[1]) > 4 * float(found[3]), "both sequences of a pair are counted"
    assert out.index("first example") < out.index("rejected (· seen")


def test_no_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the data takes no device and no memory for a model."""
    from tritune import model

    monkeypatch.setattr(model, "open_backend", None)
    monkeypatch.setattr(weights.ModelSource, "tensor", None, raising=False)
    assert main(["data", "check", write(tmp_path / "rows.jsonl", [TWO_TURNS])]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.jsonl"], "nothing.jsonl: cannot be read (No such file or directory)"),
        (["nothing.jsonl", "--split", "dev"], "expected one of train, valid, test, found 'dev'"),
        ([], "Missing argument 'SOURCE...'"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", *arguments]) == 2
    assert message in capsys.readouterr().err
