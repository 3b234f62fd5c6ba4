"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tritune.atomic import write_atomic
from tritune.errors import InputError


def test_writes_replaces_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.bin"
    for data in (b"first", b"second and longer", b""):
        write_atomic(path, data)
        assert path.read_bytes() == data
        assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
def test_others_may_read_it_as_the_umask_says(tmp_path: Path) -> None:
    write_atomic(tmp_path / "atomic", b"x")
    (tmp_path / "plain").write_bytes(b"x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("atomic", "plain")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interruption_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, step: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail) if step == "fsync" else monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
        write_atomic(path, b"new")
    if isinstance(error, OSError):
        assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"folder: cannot be written: Is a directory"):
        write_atomic(tmp_path / "folder", b"x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"file/x: cannot be written: "):
        write_atomic(tmp_path / "file" / "x", b"x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]
