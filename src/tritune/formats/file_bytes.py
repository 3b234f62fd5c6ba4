"""Parts of a file, read when they are asked for.

Nothing is mapped: the pages of a map count as memory of the process, so that a model would be held twice while it is
loaded, and a file that is cut short while it is mapped ends the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ModelFileError

BLOCK_BYTES = 4 << 20
"""About as many bytes of a table are in memory at a time while it is copied or compared."""


class RowSource(Protocol):
    """A matrix [rows, columns] that gives some of its rows at a time: an array, or one that is still in its file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        ...

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        """Some rows (a slice without a step) as an array."""
        ...


class FileBytes:
    """An open file."""

    def __init__(self, path: Path) -> None:
        """Open. Raises ModelFileError."""
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
            self.size = os.fstat(self._file.fileno()).st_size
        except FileNotFoundError:
            raise ModelFileError(f"{path}: no such file") from None
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def read(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes from ``start``. Raises ModelFileError when the file has not so many, or no longer."""
        if not 0 <= start <= start + nbytes <= self.size:
            raise ModelFileError(f"{self.path}: {nbytes} bytes at byte {start} lie outside of its {self.size} bytes")
        data = np.empty(nbytes, np.uint8)
        view = memoryview(data.data)
        try:
            self._file.seek(start)
            while len(view):
                got = self._file.readinto(view)
                if not got:
                    raise ModelFileError(f"{self.path}: was cut short while it was read")
                view = view[got:]
        except OSError as error:
            raise ModelFileError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        return data


@dataclass(frozen=True)
class FileRows:
    """A matrix in a file: a RowSource."""

    file: FileBytes
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        count, columns = max(0, last - first), self.shape[1]
        row_bytes = columns * self.dtype.itemsize
        return (
            self.file.read(self.start + first * row_bytes, count * row_bytes).view(self.dtype).reshape(count, columns)
        )


def row_blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Slices that cover ``rows`` rows, of about BLOCK_BYTES each and a multiple of 64 rows (but for the last)."""
    step = max(64, BLOCK_BYTES // max(1, row_bytes) // 64 * 64)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def equal_rows(a: RowSource, b: RowSource) -> bool:
    """Whether two matrices hold the same bits."""
    if tuple(a.shape) != tuple(b.shape):
        return False
    return all(a[rows].tobytes() == b[rows].tobytes() for rows in row_blocks(a.shape[0], 4 * a.shape[1]))
