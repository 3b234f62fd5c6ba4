"""The two files of a PEFT directory, replaced together.

Two renames are not one, so an interruption can fall between them: new weights beside the old config, which could load
with a wrong scale. Where the config changes, the old weights therefore keep a second name until the new config is in
place, and a reader that finds this name together with a config still waiting takes the old weights.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tritune.atomic import reason, replace, staged, sync_folder
from tritune.errors import AdapterError

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PREVIOUS_WEIGHTS_NAME = ".adapter_model.safetensors.previous"
NEXT_CONFIG_NAME = ".adapter_config.json.next"


def current_weights(path: Path) -> Path:
    """The weights that belong to the directory's config. Raises AdapterError when there are none that can be read."""
    if _interrupted(path):
        return path / PREVIOUS_WEIGHTS_NAME
    weights = path / WEIGHTS_NAME
    if not weights.is_file() and (path / "adapter_model.bin").exists():
        raise AdapterError(
            f"{path / 'adapter_model.bin'}: a pickle, which could run any code, is not read; expected {WEIGHTS_NAME}"
        )
    if not weights.is_file():
        raise AdapterError(f"{weights}: no such file")
    return weights


def _interrupted(path: Path) -> bool:
    return (path / PREVIOUS_WEIGHTS_NAME).is_file() and (path / NEXT_CONFIG_NAME).is_file()


def write_pair(path: Path, weights: bytes, config: bytes) -> None:
    """Write weights and config, the config last. Raises AdapterError if the system refuses; the old ones then stay."""
    try:
        if path.exists() and not path.is_dir():
            raise AdapterError(
                f"{path}: cannot save an adapter there: it is a file; expected a directory or a new name"
            )
        path.mkdir(parents=True, exist_ok=True)
        _recover(path)
        with staged(path / WEIGHTS_NAME, weights) as new_weights:
            old_config = path / CONFIG_NAME
            if old_config.is_file() and old_config.read_bytes() == config:
                replace(new_weights, path / WEIGHTS_NAME)
            else:
                with staged(old_config, config) as new_config:
                    _replace_both(path, new_weights, new_config)
    except OSError as error:
        raise AdapterError(f"{path}: the adapter cannot be saved: {reason(error)}") from None


def _replace_both(path: Path, new_weights: Path, new_config: Path) -> None:
    weights, config = path / WEIGHTS_NAME, path / CONFIG_NAME
    waiting, previous = path / NEXT_CONFIG_NAME, path / PREVIOUS_WEIGHTS_NAME
    try:
        new_config.replace(waiting)
        if weights.is_file() and config.is_file():
            _second_name(weights, previous)
        else:
            config.unlink(missing_ok=True)  # without its weights it was no adapter, and must not become one now
        sync_folder(path)
        replace(new_weights, weights)
        replace(waiting, config)
    except BaseException:
        with contextlib.suppress(OSError):
            _recover(path)
        raise
    previous.unlink(missing_ok=True)


def _second_name(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        with staged(target, source.read_bytes()) as copy:
            copy.replace(target)


def _recover(path: Path) -> None:
    """Undo a save that was interrupted between its two renames; remove what an interrupted save left."""
    if _interrupted(path):
        replace(path / PREVIOUS_WEIGHTS_NAME, path / WEIGHTS_NAME)
    for leftover in (path / NEXT_CONFIG_NAME, path / PREVIOUS_WEIGHTS_NAME, *path.glob(".adapter_*.tmp")):
        leftover.unlink(missing_ok=True)
