"""Where what can be made again is kept between runs: rows as tokens, what was measured of a device."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

MAX_BYTES = 20 << 30
"""What a cache may take; beyond it the entries that were not used for longest go."""


def cache_folder(kind: str) -> Path:
    """The folder of a kind of entries, made if need be: below TRITUNE_CACHE, else the system's place for caches.

    Entries that were not used for long are removed when all of them take too much. Raises OSError.
    """
    folder = cache_root() / kind
    folder.mkdir(parents=True, exist_ok=True)
    _prune(folder)
    return folder


def cache_root() -> Path:
    """The folder of all caches, which need not be there: TRITUNE_CACHE, else the system's place for them."""
    given = os.environ.get("TRITUNE_CACHE")
    if given:
        return Path(given)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tritune"


def _prune(folder: Path) -> None:
    entries = [(path.stat().st_mtime, path, size_of(path)) for path in folder.iterdir()]
    total = sum(size for _, _, size in entries)
    for _, path, size in sorted(entries):
        if total <= MAX_BYTES:
            return
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        total -= size


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in path.rglob("*")) if path.is_dir() else path.stat().st_size
