"""A file of rows that is never read as a whole: where each row begins is found in one scan, 8 bytes a row are kept.

JSON Lines or one JSON array (its first character says which, not its name), UTF-8 with or without a byte order mark;
CRLF and blank lines are allowed. A file compressed with gzip is unpacked once, into the cache.
"""

from __future__ import annotations

import hashlib
import weakref
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tritune.data.fields import BadRow
from tritune.data.gzip_file import is_gzip, unpacked
from tritune.data.json_text import BadJson, decode_row
from tritune.data.scan import scan_array, scan_lines
from tritune.errors import DataError

MAX_ROW_BYTES = 64 << 20
_BLOCK = 1 << 16
_BLOCKS = 512  # of a file that is longer, so many are looked at for its digest


class RowFile:
    """The rows of a file by index, each as a JSON value."""

    def __init__(self, path: Path) -> None:
        """Scan the file. Raises DataError naming it when it is missing, empty, UTF-16, or a damaged JSON array."""
        self.name = str(path)
        self._lock = Lock()
        try:
            self._file: BinaryIO = (unpacked(path) if is_gzip(path) else path).open("rb")
            weakref.finalize(self, self._file.close)  # open as long as the rows are used
            self._scan()
            facts = path.stat()
            self.digest = _digest(self._file)
            """Hexadecimal, of the content: of all of it, or of blocks all over a large file."""
            self.fingerprint = f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns} {self.digest}"
            """Changes when the file does: where it is, how long, since when, and its content."""
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error

    def _scan(self) -> None:
        file = self._file
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(_BLOCK)
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{self.name}: UTF-16, expected UTF-8")
        start = 3 if head.startswith(b"\xef\xbb\xbf") else 0
        first = _first_character(file, start)
        self.is_array = first == b"["
        self._starts: NDArray[np.int64]
        self._lines: NDArray[np.uint32] | None
        if self.is_array:
            self._starts, self._ends, self._lines = scan_array(file, start, self.name)
            if not len(self._starts):
                raise DataError(f"{self.name}: the list is empty, expected rows of training data")
        else:
            self._starts, self._lines = scan_lines(file, start)
            self._ends = np.append(self._starts[1:], size)
        if first == b"":
            raise DataError(f"{self.name}: the file is empty, expected rows of training data")

    def __len__(self) -> int:
        return len(self._starts)

    def line(self, index: int) -> int:
        """The line, from 1, on which a row begins."""
        return index + 1 if self._lines is None else int(self._lines[index])

    def place(self, index: int) -> str:
        """Where a row stands, in words."""
        return f"line {self.line(index)}" + (f", row {index + 1}" if self.is_array else "")

    def value(self, index: int) -> Any:
        """The JSON value of a row. Raises BadRow; BadJson's line is one of the file."""
        start, end = int(self._starts[index]), int(self._ends[index])
        if end - start > MAX_ROW_BYTES:
            raise BadRow(f"the row has {end - start} bytes, more than {MAX_ROW_BYTES}")
        with self._lock:
            self._file.seek(start)
            row = self._file.read(end - start).rstrip(b" \t\r\n")
        try:
            return decode_row(row)
        except BadJson as error:
            error.line += self.line(index)
            raise


def _first_character(file: BinaryIO, start: int) -> bytes:
    file.seek(start)
    while chunk := file.read(1 << 16):
        if text := chunk.lstrip():
            return text[:1]
    return b""


def _digest(file: BinaryIO) -> str:
    size = file.seek(0, 2)
    digest = hashlib.sha256(str(size).encode())
    step = max(_BLOCK, size // _BLOCKS)
    for start in range(0, size, step):
        file.seek(start)
        digest.update(file.read(_BLOCK))
    file.seek(max(0, size - _BLOCK))
    digest.update(file.read(_BLOCK))
    return digest.hexdigest()
