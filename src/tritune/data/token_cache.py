"""Examples on the disk, so that a row is tokenised once: in the first epoch of the first run that meets it.

A cache is a folder for one file of rows and one way to encode them (its name says both, by digest). ``tokens`` holds
records one after another, in the order in which rows were met; ``index`` holds for each row where its record lies and
its checksum. A record counts only when the checksum fits: a run that was killed while it wrote leaves nothing wrong.
"""

from __future__ import annotations

import hashlib
import os
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.cache_folder import cache_folder
from tritune.data.encode import Encoded
from tritune.data.examples import Example, Item, PreferenceExample
from tritune.data.file_lock import lock

# A record: one word of these bits, then a word for each token.
_SHORTENED, _PAIR = 1, 2
_TRAINED, _FIRST = 1 << 31, 1 << 30
_ID = _FIRST - 1
MAX_ID = _ID

_ENTRY = np.dtype([("offset", "<u8"), ("words", "<u4"), ("checksum", "<u4")])


class TokenCache:
    """Encoded rows of one source by index. Only one process at a time may add to it; others read what is there."""

    def __init__(self, folder: Path, rows: int) -> None:
        """Open or make the cache in ``folder``. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # says when it was last used
        self._tokens = (folder / "tokens").open("a+b", buffering=0)
        self._index_file = (folder / "index").open("a+b")
        weakref.finalize(self, self._tokens.close)
        weakref.finalize(self, self._index_file.close)
        self._writable = lock(self._tokens)
        size = rows * _ENTRY.itemsize
        if self._writable and (folder / "index").stat().st_size != size:
            self._index_file.truncate(0)
            self._index_file.truncate(size)
        mode = "r+" if self._writable else "r"
        self._index: NDArray[Any] = np.memmap(folder / "index", _ENTRY, mode, shape=(rows,))
        self._end = self._tokens.seek(0, 2)

    @staticmethod
    def open(source: str | None, encoder: str, rows: int) -> TokenCache | None:
        """The cache of a source and an encoder, given their fingerprints; None when it cannot be had.

        Without a fingerprint, or a place to write, rows are tokenised each time that they are met.
        """
        if source is None:
            return None
        try:
            name = hashlib.sha256(f"{source} {encoder}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
            return TokenCache(cache_folder("tokens") / name, rows)
        except (OSError, ValueError):
            return None

    def get(self, row: int, line: int) -> Encoded | None:
        """What the row became, or None when that is not known."""
        entry = self._index[row]
        words = int(entry["words"])
        if not words or int(entry["offset"]) + 4 * words > self._end:
            return None
        self._tokens.seek(int(entry["offset"]))
        data = self._tokens.read(4 * words)
        if len(data) != 4 * words or zlib.crc32(data) != int(entry["checksum"]):
            return None
        return _unpack(np.frombuffer(data, np.uint32), line)

    def put(self, row: int, encoded: Encoded) -> None:
        """Remember what a row became. When the disk is full nothing more is remembered."""
        if not self._writable:
            return
        data = _pack(encoded).tobytes()
        try:
            written = self._tokens.write(data)
        except OSError:
            written = -1
        if written != len(data):
            self._writable = False
            return
        self._index[row] = (self._end, len(data) // 4, zlib.crc32(data))
        self._end += len(data)


def _pack(encoded: Encoded) -> NDArray[np.uint32]:
    is_pair = any(isinstance(item, PreferenceExample) for item in encoded.items)
    head = np.array([(_SHORTENED if encoded.shortened else 0) | (_PAIR if is_pair else 0)], np.uint32)
    words = [head]
    for item in encoded.items:
        for example in item.sequences:
            packed = example.tokens.astype(np.uint32) | np.where(example.trained, _TRAINED, 0).astype(np.uint32)
            packed[0] |= _FIRST
            words.append(packed)
    return np.concatenate(words)


def _unpack(words: NDArray[np.uint32], line: int) -> Encoded:
    bits, body = int(words[0]), words[1:]
    starts = np.flatnonzero(body & _FIRST)
    sequences = [
        Example((part & _ID).astype(np.int32), (part & _TRAINED) != 0, line) for part in np.split(body, starts[1:])
    ] if len(body) else []  # fmt: skip
    items: list[Item] = (
        [PreferenceExample(a, b) for a, b in zip(sequences[::2], sequences[1::2], strict=True)]
        if bits & _PAIR
        else list(sequences)
    )
    return Encoded(tuple(items), bool(bits & _SHORTENED))
