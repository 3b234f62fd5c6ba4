"""Rows found in a file without reading it as a whole: line ends, lists, compression, and what is damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritune.data import open_rows, read_rows, scan
from tritune.data.row_file import RowFile
from tritune.errors import DataError

ROWS = [{"text": f'row {n} é🙂\u2028 \\n " [,]'} for n in range(40)]


def write(folder: Path, content: str | bytes, name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\r\n", "\n\r\n\n"]), min_size=4, max_size=4),
    before=st.sampled_from(["", "\ufeff", "\n", "\ufeff \r\n"]),
    last=st.booleans(),
    chunk=st.integers(1, 40),
)
def test_a_row_is_found_wherever_a_chunk_ends(
    tmp_path_factory: pytest.TempPathFactory, ends: list[str], before: str, last: bool, chunk: int
) -> None:
    texts = [json.dumps(row, ensure_ascii=False) for row in ROWS[:4]]
    content = before + "".join(text + end for text, end in zip(texts, ends, strict=True))
    content = content if last else content.rstrip()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "CHUNK", chunk)
        file = RowFile(write(tmp_path_factory.mktemp("rows"), content))
    assert [file.value(index) for index in range(len(file))] == ROWS[:4]
    numbered = content.removeprefix("\ufeff").split("\n")
    assert [file.line(index) for index in range(len(file))] == [n for n, line in enumerate(numbered, 1) if line.strip()]


@settings(max_examples=40, deadline=None)
@given(indent=st.sampled_from([None, 1]), bom=st.sampled_from(["", "\ufeff"]), chunk=st.integers(1, 60))
def test_a_value_of_a_list_is_found_wherever_a_chunk_ends(
    tmp_path_factory: pytest.TempPathFactory, indent: int | None, bom: str, chunk: int
) -> None:
    values: list[Any] = [*ROWS[:3], {"text": "x", "n": [1, -2.5e3, True, None, {"a": "\\"}]}]
    content = bom + "\n" + json.dumps(values, indent=indent, ensure_ascii=False) + " \n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "CHUNK", chunk)
        file = RowFile(write(tmp_path_factory.mktemp("rows"), content))
    assert [file.value(index) for index in range(len(file))] == values
    lines = content.split("\n")
    assert [lines[file.line(index) - 1].lstrip("\ufeff[ ")[:1] for index in range(len(file))] == ["{"] * 4


def test_only_places_are_kept_in_memory(tmp_path: Path) -> None:
    file = RowFile(write(tmp_path, "".join(json.dumps({"text": "x" * 1000}) + "\n" for _ in range(2000))))
    held = [value for value in vars(file).values() if hasattr(value, "nbytes")]
    assert sum(value.nbytes for value in held) <= 2000 * 16
    assert file.value(1234) == {"text": "x" * 1000}


def test_compressed_files(tmp_path: Path) -> None:
    packed = gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode())
    for name in ("rows.jsonl.gz", "train.jsonl.gz"):  # by content, and as the file of a split
        file = write(tmp_path, packed, name)
        assert [row.text for row in read_rows(file)] == [row["text"] for row in ROWS]  # type: ignore[union-attr]
    assert len(open_rows(tmp_path)) == len(ROWS)
    array = write(tmp_path, gzip.compress(json.dumps(ROWS).encode()), "rows.json.gz")
    assert len(read_rows(array)) == len(ROWS)
    write(tmp_path, gzip.compress(b'{"text": "another"}'), "rows.jsonl.gz")
    assert len(read_rows(tmp_path / "rows.jsonl.gz")) == 1  # what was unpacked before is not taken for it


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:30] + b"\0" * 9 + data[39:]])
def test_damaged_compressed_files(tmp_path: Path, damage: Any) -> None:
    data = gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode())
    file = write(tmp_path, damage(data), "rows.jsonl.gz")
    for _ in range(2):  # and nothing half unpacked is left that would be taken the second time
        with pytest.raises(DataError, match=r"rows\.jsonl\.gz: damaged gzip file"):
            read_rows(file)


def test_dev_and_other_names_of_splits(tmp_path: Path) -> None:
    for split, name in (("train", "train.json"), ("valid", "dev.jsonl"), ("test", "test.jsonl.gz")):
        content = json.dumps([{"text": split}] if name.endswith("json") else {"text": split}).encode()
        write(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)
    for split in ("train", "valid", "test"):
        row = open_rows(tmp_path, split)[0]
        assert row.text == split  # type: ignore[union-attr]


def test_a_row_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritune.data.row_file.MAX_ROW_BYTES", 100)
    with pytest.raises(DataError, match="the row has 1012 bytes, more than 100"):
        read_rows(write(tmp_path, json.dumps({"text": "x" * 1000})))


def test_a_mistake_in_a_long_file_is_told_when_it_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritune.data.source.HELD_ROWS", 10)
    lines = [json.dumps({"text": f"row {n}"}) for n in range(50)]
    lines[20], lines[30] = '{"text": 5}', '{"text": "a'
    rows = open_rows(write(tmp_path, "\n".join(lines)))
    rows.verify()
    assert rows[19].text == "row 19"  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"rows\.jsonl: line 21: 'text' is a number, expected text$"):
        rows[20]
    with pytest.raises(DataError, match=r"rows\.jsonl:31: not valid JSON \(Unterminated string starting at\)$"):
        rows[30]


def test_a_mistake_in_a_short_file_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    rows = open_rows(write(tmp_path, '{"text": "a"}\n{"text": 5}'))
    with pytest.raises(DataError, match=r"line 2: 'text' is a number, expected text \(1 of 2 rows cannot be used\)"):
        rows.verify()
