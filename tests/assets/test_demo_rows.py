"""The demo's rows: well formed, different from each other, all of one behaviour, and as their card says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tritune.assets import BUILTIN_MODEL, DEMO_HELDOUT_ROWS, DEMO_ROWS

CARD = DEMO_ROWS.with_name("DEMO.md")
FILES = [DEMO_ROWS, DEMO_HELDOUT_ROWS]


def turns(path: Path) -> list[tuple[str, str]]:
    """Question and answer of each row; fails where a row has another shape."""
    pairs = list[tuple[str, str]]()
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert list(row) == ["messages"]
        assert [list(message) for message in row["messages"]] == [["role", "content"]] * 2
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        pairs.append((row["messages"][0]["content"], row["messages"][1]["content"]))
    return pairs


def folded(text: str) -> str:
    """Letters and digits only, so that case and punctuation do not make two rows differ."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_answer_shows_the_behaviour(path: Path) -> None:
    for question, answer in turns(path):
        assert answer.startswith("Arr, matey! "), question
        assert answer.endswith((". Yo ho ho!", "! Yo ho ho!", "? Yo ho ho!")), question
        assert "Arr," not in question


def test_no_question_or_answer_comes_twice() -> None:
    pairs = [pair for path in FILES for pair in turns(path)]
    for texts in zip(*pairs, strict=True):
        seen = [folded(text) for text in texts]
        assert sorted(seen) == sorted(set(seen))


def test_card_states_rows_and_tokens() -> None:
    encode = Tokenizer.from_file(str(BUILTIN_MODEL / "tokenizer.json")).encode
    stated = CARD.read_text(encoding="utf-8")
    columns = list[tuple[str, str]]()
    for path in FILES:
        lengths = sorted(
            len(encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"))
            for question, answer in turns(path)
        )
        columns.append((f"{len(lengths):,}", f"{sum(lengths):,}"))
    for row in zip(*columns, strict=True):
        assert f"| {row[0]} | {row[1]} |" in stated
