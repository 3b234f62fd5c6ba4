"""JSON values out of the text of a file, with errors that say where."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tritune.data.fields import BadRow


class BadJson(BadRow):
    """Why a text is not JSON; ``line`` counts from 0 where the text begins."""

    def __init__(self, reason: str, line: int = 0, position: int = 0) -> None:
        super().__init__(f"not valid JSON ({reason})")
        self.line = line
        self.position = position


def decode_row(row: bytes) -> Any:
    """The one JSON value that ``row`` (UTF-8) is. Raises BadRow: not UTF-8, not JSON, or more than one value."""
    try:
        text = row.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow(f"not UTF-8 (byte 0x{row[error.start]:02x})") from error
    value, end = decode_value(text, 0)
    if text[end:].strip():
        raise BadJson("more text behind the row", text.count("\n", 0, skip_space(text, end)), end)
    return value


def decode_value(text: str, position: int) -> tuple[Any, int]:
    """One JSON value at ``position`` and where it ends. Raises BadJson."""
    try:
        return _DECODER.raw_decode(text, skip_space(text, position))
    except json.JSONDecodeError as error:
        raise BadJson(error.msg, text.count("\n", position, error.pos), error.pos) from error
    except RecursionError as error:
        raise BadJson("nested too deeply") from error
    except ValueError as error:
        raise BadJson(str(error)) from error


def skip_space(text: str, position: int) -> int:
    """The first position from ``position`` on that is not white space."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
