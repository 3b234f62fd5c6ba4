"""Checkpoints: folders ``checkpoint-<step>`` from which a run goes on as if it had never stopped.

A checkpoint is a PEFT adapter directory with one more file, ``training_state.safetensors``: AdamW's moments, its
counters and the sums for the log as tensors; where the run stands and its settings as JSON in the metadata. It is
written under another name and renamed when it is whole, so a folder of this name is always a complete one.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as to_safetensors

from tritune.atomic import reason, sync_folder, write_atomic
from tritune.errors import ConfigError, InputError, ModelFileError, TrituneError
from tritune.formats.fields import is_integer, is_number
from tritune.formats.safetensors import SafetensorsFile
from tritune.lora import Adapter
from tritune.lora.adapter import HasConfig

STATE_NAME = "training_state.safetensors"
VERSION = 1
_NAME = re.compile(r"checkpoint-(\d{1,12})")
_LEFTOVER = re.compile(r"\.checkpoint-\d{1,12}\.[0-9a-f]{8}\.(tmp|old)")

Arrays = dict[str, NDArray[np.float32]]


@dataclass
class Progress:
    """Where a run stands: everything that the loop counts."""

    step: int = 0  # optimizer steps done
    micro: int = 0  # micro-batches done
    epoch: int = 0  # of the next batch
    row: int = 0  # of the epoch: rows that lie behind
    batch: int = 0  # of those that the next rows make: batches that lie behind
    lr: float = 0.0  # of the last step
    logged: int = 0  # the step of the last log
    evaluated: int = -1  # the step of the last evaluation
    window_rows: int = 0  # tokens that went through the model since the last log
    seconds: float = 0.0  # of the run, up to the last stop
    best_step: int = -1  # of the lowest held-out loss; -1 = there was none
    best_loss: float = float("inf")
    worse: int = 0  # evaluations in a row whose loss was not the lowest


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds."""

    path: Path
    progress: Progress
    settings: Mapping[str, Any]  # of the run that wrote it
    arrays: Arrays  # TrainingState.snapshot
    adapter: Adapter


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"checkpoint-{step}"


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of a run's checkpoints, the oldest first. Half-written ones have other names."""
    found = [(match, path) for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return sorted((int(match[1]), path) for match, path in found if (path / STATE_NAME).is_file())


def save_checkpoint(
    folder: Path, adapter: Adapter, progress: Progress, settings: Mapping[str, Any], arrays: Mapping[str, Any]
) -> Path:
    """Write the checkpoint of ``progress.step``, whole or not at all; one of the same name is replaced.

    Raises InputError where it cannot be written.
    """
    path = checkpoint_path(folder, progress.step)
    staging = _aside(path, "tmp")
    counts = {name: None if value == float("inf") else value for name, value in asdict(progress).items()}
    state = {"version": VERSION, "progress": counts, "settings": settings}
    try:
        adapter.save(staging)
        contents = to_safetensors(dict(arrays), metadata={"training_state": json.dumps(state)})
        write_atomic(staging / STATE_NAME, contents)
        if path.exists():
            remove_checkpoint(path)
        staging.rename(path)
        sync_folder(folder)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {reason(error)}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return path


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint; its name goes first, so that half of one never carries it. Raises OSError."""
    aside = _aside(path, "old")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed run left half written or half removed."""
    for path in folder.glob(".checkpoint-*"):
        if _LEFTOVER.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def prune(folder: Path, keep: int, best_step: int) -> None:
    """Keep the newest ``keep`` checkpoints and the one of ``best_step``. Raises InputError."""
    for step, path in list_checkpoints(folder)[:-keep]:
        if step != best_step:
            try:
                remove_checkpoint(path)
            except OSError as error:
                raise InputError(f"{path}: cannot be removed: {reason(error)}") from None


def load_checkpoint(path: Path, model: HasConfig) -> Checkpoint:
    """Read a checkpoint of a model. Raises ConfigError, AdapterError: one line that names what is wrong."""
    file = path / STATE_NAME
    if not file.is_file():
        what = "an adapter without a training state (start from it with --adapter)" if _is_adapter(path) else "none"
        raise ConfigError(f"resume {path}: expected a checkpoint with {STATE_NAME}, found {what}")
    try:
        tensors = SafetensorsFile(file)
        arrays: Arrays = {name: np.array(tensors.read(name), np.float32) for name in tensors.infos}
        state: object = json.loads(tensors.metadata["training_state"])
    except (ModelFileError, ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"resume {path}: {STATE_NAME} is damaged ({' '.join(str(error).split())})") from None
    found = cast("dict[str, Any]", state) if isinstance(state, dict) else {}
    settings: object = found.get("settings")
    if found.get("version") != VERSION or not isinstance(settings, dict):
        raise ConfigError(f"resume {path}: {STATE_NAME} is not of a version that this tritune reads")
    progress = _progress(found.get("progress"), path)
    return Checkpoint(path, progress, cast("dict[str, Any]", settings), arrays, Adapter.load(path, model))


def newest_checkpoint(folder: Path, model: HasConfig) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of a run that can be read (None: there is none), and notes about damaged newer ones."""
    notes: list[str] = []
    for _, path in reversed(list_checkpoints(folder)):
        try:
            return load_checkpoint(path, model), notes
        except TrituneError as error:
            notes.append(f"{error}; an older checkpoint is tried")
    return None, notes


def _progress(value: object, path: Path) -> Progress:
    counts = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    known = {field.name: field.default for field in fields(Progress)}
    if counts.get("best_loss", 0) is None:
        counts["best_loss"] = float("inf")
    for name, default in known.items():
        if not (is_integer if isinstance(default, int) else is_number)(counts.get(name)):
            raise ConfigError(f"resume {path}: {STATE_NAME} says nothing usable about {name}")
    return Progress(**{name: counts[name] for name in known})


def _is_adapter(path: Path) -> bool:
    return (path / "adapter_config.json").is_file()


def _aside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{suffix}")
