"""Where the rows of a file begin, found without keeping the file."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tritune.data.json_text import BadJson, decode_value, skip_space
from tritune.errors import DataError

CHUNK = 4 << 20
MAX_VALUE = 64 << 20
"""Most bytes of one value of a list."""

_NEWLINE, _LAST_SPACE = 10, 32

Starts = NDArray[np.int64]
Lines = NDArray[np.uint32]


def scan_lines(file: BinaryIO, start: int) -> tuple[Starts, Lines | None]:
    """(where each line that is not blank begins, its number from 1, or None when no line is blank).

    Only ``\\n`` ends a line: others, such as U+2028, may stand inside of JSON text.
    """
    file.seek(start)
    kept: list[Starts] = []
    numbers: list[Lines] = []
    position, lines, at_start, any_blank = start, 0, True, False
    while chunk := file.read(CHUNK):
        data = np.frombuffer(chunk, np.uint8)
        begins = np.flatnonzero(data[:-1] == _NEWLINE) + 1
        if at_start:
            begins = np.concatenate([[0], begins])
        at_start = chunk.endswith(b"\n")
        is_row = data[begins] > _LAST_SPACE
        for index in np.flatnonzero(~is_row):  # begins with white space: a row all the same, unless it is all there is
            is_row[index] = not _is_blank(file, position + int(begins[index]))
        any_blank |= not is_row.all()
        kept.append(begins[is_row] + position)
        numbers.append((np.flatnonzero(is_row) + (lines + 1)).astype(np.uint32))
        lines += len(begins)
        position += len(chunk)
        file.seek(position)
    return np.concatenate(kept or [np.zeros(0, np.int64)]), np.concatenate(numbers) if any_blank else None


def _is_blank(file: BinaryIO, position: int) -> bool:
    file.seek(position)
    while piece := file.readline(1 << 16):
        if piece.strip():
            return False
        if piece.endswith(b"\n"):
            break
    return True


def scan_array(file: BinaryIO, start: int, name: str) -> tuple[Starts, Starts, Lines]:
    """(where each value of a JSON array begins, where it ends, the line of its beginning, from 1).

    Raises DataError naming file and line when the array is not valid JSON.
    """
    text = _Window(file, start)
    text.skip("[")
    starts: list[int] = []
    ends: list[int] = []
    lines: list[int] = []
    try:
        if text.peek() == "]":
            text.skip("]")
        else:
            while True:
                starts.append(text.position)
                lines.append(text.line)
                text.skip_value()
                ends.append(text.position)
                mark = text.peek()
                if mark not in (",", "]"):
                    raise BadJson(f"expected ',' or ']', found {mark!r}" if mark else _END)
                text.skip(mark)
                if mark == "]":
                    break
        if mark := text.peek():
            raise BadJson(f"expected the end of the file behind the list, found {mark!r}")
    except BadJson as error:
        raise DataError(f"{name}:{text.line + error.line}: {error}") from error
    return np.array(starts, np.int64), np.array(ends, np.int64), np.array(lines, np.uint32)


_END = "expected ',' or ']', found the end of the file"


class _Window:
    """The part of a file that is looked at. Bytes are taken for Latin-1: a character is then a byte, and JSON's own
    signs are where they are in UTF-8."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self._begin = start  # of the window, in the file
        self._text = ""
        self._at = 0
        self._is_end = False
        self.line = 1
        file.seek(start)

    @property
    def position(self) -> int:
        """Bytes of the file before the place that is looked at."""
        return self._begin + self._at

    def peek(self) -> str:
        """The next character that is no white space (empty: the end of the file); the place moves before it."""
        while True:
            self._move(skip_space(self._text, self._at))
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def skip(self, mark: str) -> None:
        """Go behind ``mark``, the next character but white space, and before what follows it."""
        assert self.peek() == mark
        self._move(self._at + 1)
        self.peek()

    def skip_value(self) -> None:
        """Go behind the JSON value that begins here. Raises BadJson."""
        while True:
            try:
                _, end = decode_value(self._text, self._at)
            except BadJson as error:
                # It may be whole when more of the file is there: when it ends too early, or inside of a text.
                cut = error.position > len(self._text) - 16 or "Unterminated" in str(error)
                if cut and len(self._text) - self._at < MAX_VALUE and self._more():
                    continue
                raise
            if end == len(self._text) and self._more():  # a number may go on
                continue
            return self._move(end)

    def _move(self, to: int) -> None:
        self.line += self._text.count("\n", self._at, to)
        self._at = to

    def _more(self) -> bool:
        """Read on, and forget what lies behind; as much again as is there, so that a long value costs no square."""
        if self._is_end:
            return False
        rest = self._text[self._at :]
        added = self._file.read(max(CHUNK, len(rest)))
        self._begin += self._at
        self._text, self._at = rest + added.decode("latin-1"), 0
        self._is_end = not added
        return bool(added)
