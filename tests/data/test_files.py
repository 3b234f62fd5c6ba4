"""Files of rows: encodings, line ends, kinds, and one clear line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritune.data import AlpacaRow, ChatRow, CompletionRow, TextRow, Turn, find_split, read_rows, split_rows
from tritune.errors import ConfigError, DataError

ALPACA = [{"instruction": f"q{i}", "input": "", "output": f"a{i}\u2028é🙂"} for i in range(3)]


def write(folder: Path, content: str | bytes, name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def lines(rows: list[Any], end: str = "\n") -> str:
    return end.join(json.dumps(row, ensure_ascii=False) for row in rows)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n  \r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_json_lines(tmp_path: Path, end: str, bom: bytes) -> None:
    rows = read_rows(write(tmp_path, bom + lines(ALPACA, end).encode()))
    step = end.count("\n")
    assert rows == [AlpacaRow(f"q{i}", "", f"a{i}\u2028é🙂", line=1 + i * step) for i in range(3)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_json_array(tmp_path: Path, indent: int | None, bom: bytes) -> None:
    text = json.dumps(ALPACA, indent=indent).replace("\n", "\r\n")
    rows = read_rows(write(tmp_path, bom + b"\n " + text.encode() + b"\n\n", "rows.json"))
    assert [row.line for row in rows] == ([2, 2, 2] if indent is None else [3, 8, 13])
    assert [row.output for row in rows if isinstance(row, AlpacaRow)] == [row["output"] for row in ALPACA]


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.fixed_dictionaries({"prompt": st.text(), "completion": st.text()}), min_size=1, max_size=5),
    as_array=st.booleans(),
)
def test_any_text_survives(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]], as_array: bool
) -> None:
    text = json.dumps(rows, ensure_ascii=False) if as_array else lines(rows)
    found = read_rows(write(tmp_path_factory.mktemp("any"), text))
    assert [(row.prompt, row.completion) for row in found if isinstance(row, CompletionRow)] == [
        (row["prompt"], row["completion"]) for row in rows
    ]


def test_kinds() -> None:
    message = {"role": "assistant", "content": "hi"}
    parts = {"role": "user", "content": [{"type": "text", "value": "a"}, {"type": "text", "text": "b"}]}
    assert read_rows([{"messages": [parts, message]}]) == [ChatRow((Turn("user", "ab"), Turn("assistant", "hi")), 1)]
    assert read_rows([{"text": "t", "id": 1}]) == [TextRow("t", 1)]
    assert read_rows([{"prompt": "p", "completion": ""}]) == [CompletionRow("p", "", 1)]
    # An Alpaca file often carries its rendered prompt as "text" too; null means no input.
    assert read_rows([{"instruction": "i", "input": None, "output": "o", "text": "t"}]) == [AlpacaRow("i", "", "o", 1)]


def test_answers_with_weight_zero_are_context() -> None:
    messages = [
        {"role": "assistant", "content": "a", "weight": 0},
        {"role": "assistant", "content": "b", "loss_weight": 1.0},
    ]
    (row,) = read_rows([{"messages": messages}])
    assert isinstance(row, ChatRow)
    assert [turn.trained for turn in row.turns] == [False, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": the file is empty"),
        (b" \r\n\n", ": the file is empty"),
        (b"[ ]", ": the list is empty"),
        ("{}", ": rows with the keys none are not supported"),
        ('{"a": 1, "b": 2}', ": rows with the keys a, b are not supported; expected messages or conv"),
        ('{"conversations": [], "chosen": 1}', ": 0 of 1 rows usable: 1× no 'rejected'"),
        ('{"prompt": "", "completion": "", "label": false}', "1× 'label' marks good and bad answers (KTO)"),
        ('{"instruction": "", "output": "", "history": [["a", "b"]]}', "1× 'history' is not supported"),
        ("hello", ":1: not valid JSON (Expecting value)"),
        ('{"text": "a"}\n\n{"text": "b"', ":3: not valid JSON (Expecting ',' delimiter)"),
        ('{"text": "a"} {"text": "b"}', ":1: not valid JSON (more text behind the row)"),
        ('[\n{"text": "a"}\n{"text": "b"}]', ":3: not valid JSON (expected ',' or ']', found '{')"),
        ('[\n{"text": "a"}\n', ":3: not valid JSON (expected ',' or ']', found the end of the file)"),
        ('[\n{"text": "a"},\n', ":3: not valid JSON (Expecting value)"),
        ('[\n{"text": \n"a}', ":3: not valid JSON (Unterminated string starting at)"),
        ('[{"text": "a"}] more', ":1: not valid JSON (expected the end of the file behind the list, found 'm')"),
        ('{"text": NaN}', ":1: not valid JSON (NaN is not a JSON value)"),
        ("[" * 100_000, ":1: not valid JSON (nested too deeply)"),
        ('{"text": "a"}\n{"text": "\xe9"}'.encode("cp1252"), ": line 2: not UTF-8 (byte 0xe9)"),
        ('{"text": "a"}'.encode("utf-16"), ": UTF-16, expected UTF-8"),
        ('{"text": 3}', ": 0 of 1 rows usable: 1× 'text' is a number, expected text (first at line 1)"),
        ('\n{"text": ""}', ": 0 of 1 rows usable: 1× 'text' is empty (first at line 2)"),
        ("3\n4", ": 0 of 2 rows usable: 2× the row is a number, expected an object (first at line 1)"),
        ('{"text": "\\ud800"}', ": 0 of 1 rows usable: 1× 'text' holds half a surrogate pair"),
        ('{"text": "a"}\n{"text": "b"}\n{"txt": "c"}', ": line 3: no 'text' (1 of 3 rows cannot be used)"),
        ('[{"text": "a"},\n {"text": null}]', ": line 2, row 2: 'text' is null, expected text (1 of 2 rows"),
        ('{"messages": []}', "1× no answer of the assistant to learn"),
        ('{"messages": {}}', "1× 'messages' is an object, expected a list"),
        ('{"messages": ["x"]}', "1× a message is text, expected an object with role and content"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "1× a message has the role 'robot'"),
        ('{"messages": [{"role": "user"}]}', "1× no 'content'"),
        ('{"messages": [{"role": "assistant", "content": null}]}', "1× 'content' is null, expected text"),
        ('{"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}', "a part that is not text"),
        (
            '{"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]}',
            "1× a tool call is a number, expected",
        ),
        ('{"messages": [{"role": "assistant", "content": "", "weight": 0.5}]}', "'weight' is 0.5, expected 0 or 1"),
        ('{"messages": [{"role": "assistant", "content": "", "weight": [1]}]}', "'weight' is [1], expected 0 or 1"),
    ],
)
def test_what_is_wrong(tmp_path: Path, content: str | bytes, message: str) -> None:
    file = write(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_rows(file)
    text = str(caught.value)
    assert text.startswith(str(file))
    assert message in text
    assert "\n" not in text


def test_reasons_are_counted(tmp_path: Path) -> None:
    rows = [{"instruction": "q", "input": ""}] * 37 + [{"instruction": 3, "output": "a"}]
    with pytest.raises(
        DataError, match=r"0 of 38 rows usable: 37× no 'output' \(first at line 1\), 1× 'instruction' is"
    ):
        read_rows(write(tmp_path, lines(rows)))


def test_bad_rows_may_be_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, '{"text": "a"}\n{"text": 3}\n{"text": "b"}')
    assert [row.line for row in read_rows(file, bad_rows="skip")] == [1, 3]


def test_rows_given_as_a_list() -> None:
    with pytest.raises(DataError, match=r"^rows given: row 2: no 'output' \(1 of 2 rows cannot be used\)$"):
        read_rows([ALPACA[0], {"instruction": "q"}])
    with pytest.raises(DataError, match=r"^rows given: there are none$"):
        read_rows([])


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.json: cannot be read \(No such file or directory\)"):
        read_rows(tmp_path / "nothing.json")
    with pytest.raises(DataError, match=r"expected one file of train rows, found none of train\.jsonl, train\.json"):
        read_rows(tmp_path)


def test_folders(tmp_path: Path) -> None:
    write(tmp_path, lines(ALPACA), "train.jsonl")
    write(tmp_path, json.dumps(ALPACA[:1]), "valid.json")
    assert len(read_rows(tmp_path)) == 3
    assert find_split(tmp_path, "valid").name == "valid.json"
    write(tmp_path, json.dumps(ALPACA), "train.json")
    with pytest.raises(DataError, match=r"found both train\.jsonl and train\.json"):
        read_rows(tmp_path)


def test_held_out_rows() -> None:
    rows = list(range(20))
    train, held_out = split_rows(rows, 0.1, seed=1)
    assert len(held_out) == 2
    assert sorted(train + held_out) == rows
    assert train == sorted(train)
    assert split_rows(rows, 0.1, seed=1) == (train, held_out)
    assert split_rows(rows, 0.1, seed=2)[1] != held_out
    assert len(split_rows(rows, 5, seed=0)[1]) == 5
    assert len(split_rows(rows, 0.001, seed=0)[1]) == 1
    assert split_rows(rows, 0, seed=0) == (rows, [])


@pytest.mark.parametrize("held_out", [-1, 1.5, 20, 0.99, float("nan")])
def test_held_out_rows_that_make_no_sense(held_out: float) -> None:
    with pytest.raises(ConfigError, match=r"^held-out rows: "):
        split_rows(list(range(20)), held_out, seed=0)
