"""Files of rows that are compressed with gzip: unpacked once, since their rows are read in any order."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import zlib
from pathlib import Path

from tritune.atomic import replace
from tritune.cache_folder import cache_folder
from tritune.errors import DataError

_CHUNK = 4 << 20
_FREE = 1 << 30
"""Bytes of the disk that unpacking leaves free: a small file may hold any number of zeros."""


def is_gzip(path: Path) -> bool:
    """Whether a file begins as gzip's do. Raises OSError."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def unpacked(path: Path) -> Path:
    """The content of a gzip file, as a file of the cache. Raises DataError when it is damaged or too large."""
    facts = path.stat()
    name = hashlib.sha256(f"{path.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}".encode()).hexdigest()[:32]
    target = cache_folder("unpacked") / name
    if target.exists():
        return target
    temporary = target.with_suffix(".tmp")
    try:
        with gzip.open(path) as source, temporary.open("wb") as out:
            while chunk := source.read(_CHUNK):
                if shutil.disk_usage(target.parent).free < _FREE + len(chunk):
                    raise DataError(f"{path}: does not fit the disk of {target.parent} when it is unpacked")
                out.write(chunk)
        replace(temporary, target)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip file ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target
