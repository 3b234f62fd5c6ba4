"""Encode the corpus once: python corpus.py SOURCE WORK writes WORK/docs.npz (README.md says what SOURCE holds)."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

NOT_TRAINED = 0x8000
"""Bit 15 of a token: predicting it is not trained (questions, padding)."""

Row = tuple[str, str]
"""Question (or none, "") and text."""
Document = tuple[np.ndarray, np.ndarray]
"""The two parts of a row as uint16 tokens, the first one marked as not trained."""


def prompt(question: str) -> str:
    """The model's chat template."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" if question else ""


def load_tokenizer(source: Path) -> Tokenizer:
    return Tokenizer.from_file(str(source / "tokenizer.json"))


def load_json(source: Path, name: str) -> Any:
    with gzip.open(source / f"{name}.json.gz", "rt", encoding="utf8") as file:
        return json.load(file)


def encode(tokenizer: Tokenizer, rows: Sequence[Row]) -> list[Document]:
    asked = tokenizer.encode_batch([prompt(question) for question, _ in rows])
    told = tokenizer.encode_batch([text for _, text in rows])
    return [
        (np.array(a.ids, dtype=np.uint16) | NOT_TRAINED, np.array(b.ids, dtype=np.uint16))
        for a, b in zip(asked, told, strict=True)
    ]


def flat(documents: Sequence[Document]) -> dict[str, np.ndarray]:
    """All tokens one after another, and the lengths of both parts of every document."""
    return {
        "tokens": np.concatenate([part & (NOT_TRAINED - 1) for document in documents for part in document]),
        "asked": np.array([len(a) for a, _ in documents], dtype=np.int32),
        "told": np.array([len(b) for _, b in documents], dtype=np.int32),
    }


def unflat(arrays: Mapping[str, np.ndarray], name: str) -> list[Document]:
    """What flat took apart, from docs.npz."""
    tokens, asked, told = (arrays[f"{name}.{part}"] for part in ("tokens", "asked", "told"))
    ends = np.cumsum(asked + told)
    starts = ends - asked - told
    return [
        (tokens[start : start + a] | NOT_TRAINED, tokens[start + a : end])
        for start, a, end in zip(starts, asked, ends, strict=True)
    ]


def read(path: Path) -> list[Row]:
    """Rows of a text file under xz: ASCII record separators between rows, a unit separator after the question."""
    with lzma.open(path, "rt", encoding="utf8") as file:
        parts = [row.split("\x1f") for row in file.read().split("\x1e")]
    return [(question, text) for question, text in parts]


def main(source: Path, work: Path) -> None:
    tokenizer = load_tokenizer(source)
    held_out = load_json(source, "gen_info")
    sets: dict[str, list[Row]] = {
        "stories": [row for path in sorted(source.glob("sel_s*.xz")) for row in read(path)],
        "answers": read(source / "sel_q.xz"),
        "held_out_stories": held_out["val_story"],
        "held_out_answers": held_out["val_qa"],
    }
    arrays = dict[str, np.ndarray]()
    for name, rows in sets.items():
        parts = flat(encode(tokenizer, rows))
        print(f"{name}: {len(rows)} rows, {parts['tokens'].size} tokens")
        arrays |= {f"{name}.{part}": array for part, array in parts.items()}
    work.mkdir(parents=True, exist_ok=True)
    np.savez(work / "docs.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
