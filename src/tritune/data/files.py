"""Files of training rows: JSON Lines or one JSON array, into rows with line numbers.

UTF-8 with or without a byte order mark; CRLF and blank lines are allowed. Which of the two a file is, its first
character says, not its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from tritune.data.counts import RowCounts
from tritune.data.fields import BadRow, describe
from tritune.data.rows import EXPECTED, Row, kind_of
from tritune.errors import DataError

SPLITS = {"train": ("train",), "valid": ("valid", "validation", "val", "eval"), "test": ("test",)}

_Numbered = tuple[int, Any]  # line from 1 (of a list given: the row), value


def read_rows(
    source: str | Path | Sequence[Mapping[str, Any]], bad_rows: Literal["error", "skip"] = "error"
) -> list[Row]:
    """Rows of a file, of the ``train`` file in a folder, or of a list of dicts, all of one kind.

    ``bad_rows``: whether one row that cannot be used is an error, or is left out. Raises DataError naming file and line
    when the file is missing, empty, not JSON, of an unknown kind, or when no row can be used.
    """
    if isinstance(source, (str, Path)):
        file = find_split(Path(source), "train") if Path(source).is_dir() else Path(source)
        name, text = str(file), _read_text(file)
        is_array = text.lstrip().startswith("[")
        numbered = list(_parse_array(text, name) if is_array else _parse_lines(text, name))
        place = "line {line}, row {row}" if is_array else "line {line}"
    else:
        name, place = "rows given", "row {row}"
        if not source:
            raise DataError(f"{name}: there are none")
        numbered = [(row, value) for row, value in enumerate(source, start=1)]
    rows, refused = _verify(numbered, name, place)
    if not rows:
        raise DataError(f"{name}: 0 of {len(numbered)} rows usable: {refused}")
    if refused.total and bad_rows == "error":
        reason, where = refused.first
        raise DataError(f"{name}: {where}: {reason} ({refused.total} of {len(numbered)} rows cannot be used)")
    return rows


def find_split(folder: Path, split: str) -> Path:
    """The file of a split (train, valid, test) in a folder. Raises DataError when there is none, or more than one."""
    names = [f"{stem}{suffix}" for stem in SPLITS[split] for suffix in (".jsonl", ".json")]
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) != 1:
        what = f"both {found[0].name} and {found[1].name}" if found else f"none of {', '.join(names)}"
        raise DataError(f"{folder}: expected one file of {split} rows, found {what}")
    return found[0]


def _verify(numbered: Sequence[_Numbered], name: str, place: str) -> tuple[list[Row], RowCounts]:
    objects = [cast("Mapping[str, Any]", value) for _, value in numbered if isinstance(value, Mapping)]
    kind = kind_of(objects)
    if kind is None and objects:
        keys = ", ".join(sorted(str(key)[:40] for key in objects[0])[:20]) or "none"
        raise DataError(f"{name}: rows with the keys {keys} are not supported; expected {EXPECTED}")
    rows: list[Row] = []
    refused = RowCounts()
    for row, (line, value) in enumerate(numbered, start=1):
        try:
            if kind is None or not isinstance(value, Mapping):
                raise BadRow(f"the row is {describe(value)}, expected an object")
            rows.append(kind.parse(cast("Mapping[str, Any]", value), line))
        except BadRow as reason:
            refused.add(str(reason), place.format(line=line, row=row))
    return rows, refused


def _read_text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{file}: UTF-16, expected UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{file}:{line}: not UTF-8 (byte 0x{data[error.start]:02x})") from error
    if not text.strip():
        raise DataError(f"{file}: the file is empty, expected rows of training data")
    return text


def _parse_lines(text: str, name: str) -> Iterator[_Numbered]:
    # Only \n ends a line: splitlines would also cut at U+2028, which may stand inside of JSON text.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            value, end = _decode(line, 0, name, number)
            if line[end:].strip():
                raise DataError(f"{name}:{number}: not valid JSON (more text behind the row)")
            yield number, value


def _parse_array(text: str, name: str) -> Iterator[_Numbered]:
    """The elements of one JSON array, read one by one so that each has its line."""
    position = _skip_space(text, text.index("[") + 1)
    line, counted = 1, 0
    if text[position : position + 1] == "]":
        raise DataError(f"{name}: the list is empty, expected rows of training data")
    while True:
        line, counted = line + text.count("\n", counted, position), position
        value, end = _decode(text, position, name, line)
        yield line, value
        end = _skip_space(text, end)
        mark = text[end : end + 1]
        if mark == "]" and not text[end + 1 :].strip():
            return
        if mark != ",":
            found = repr(mark) if mark else "the end of the file"
            raise DataError(
                f"{name}:{1 + text.count(chr(10), 0, end)}: not valid JSON (expected ',' or ']', found {found})"
            )
        position = _skip_space(text, end + 1)


def _decode(text: str, position: int, name: str, line: int) -> tuple[Any, int]:
    """One JSON value at ``position`` and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, _skip_space(text, position))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{name}:{line + text.count(chr(10), position, error.pos)}: not valid JSON ({error.msg})"
        ) from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise DataError(f"{name}:{line}: not valid JSON ({reason})") from error
    return value, end


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
