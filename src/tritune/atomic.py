"""Writing files so that a crash never leaves half of one: a temporary name in the same folder, fsync, rename."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path

from tritune.errors import InputError


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; its folder is created. Raises InputError, naming the file, if it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged(path, data) as temporary:
            replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {reason(error)}") from None


@contextlib.contextmanager
def staged(path: Path, data: bytes) -> Generator[Path]:
    """The data under a temporary name beside ``path``, on the disk; removed at the end unless it was renamed by then.

    Raises OSError.
    """
    # Not tempfile: its files are readable by their owner only, and the rename would keep that.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_directory(path: Path) -> Generator[Path]:
    """A folder under a temporary name to fill; it gets its own name at the end, and is removed if that is not reached.

    Raises InputError when there is something at ``path`` already, or the system refuses.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path}: cannot be written: it is there already; expected a new name or an empty folder")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        sync_folder(temporary)
        if path.exists():
            path.rmdir()
        replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {reason(error)}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace(source: Path, target: Path) -> None:
    """Rename over ``target`` and make the rename itself durable. Raises OSError."""
    source.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk where the system can (Windows cannot open one)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def reason(error: OSError) -> str:
    """An OSError's text, without the path that the message has already."""
    return error.strerror or str(error) or type(error).__name__
