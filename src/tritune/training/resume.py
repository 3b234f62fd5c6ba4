"""Going on with a stopped run: which checkpoint, and whether it is still the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

from tritune.atomic import reason
from tritune.data import Dataset, Item
from tritune.errors import ConfigError, InputError
from tritune.formats.fields import short
from tritune.lora import Adapter, LoRAConfig
from tritune.model import Model
from tritune.training.checkpoint import (
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    remove_checkpoint,
    remove_leftovers,
)
from tritune.training.config import TrainConfig

OF_RUN = ("model", "data", "seed", "method", "reference", "max_seq_len", "micro_batch_tokens")
FIXED = {*OF_RUN, *(field.name for field in fields(LoRAConfig))}
"""Settings that a resumed run cannot change: what the checkpoint holds would mean something else."""

ROWS = ("data", "eval_data")


def find_checkpoint(
    model: Model, resume: str | Path | Literal["auto"] | None, output: Path | None
) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from, and notes about it. Raises ConfigError."""
    if resume is None:
        return None, []
    if resume != "auto":
        return load_checkpoint(Path(resume), model), []
    if output is None:
        raise ConfigError("resume auto: looks for checkpoints in the output folder, and there is none")
    checkpoint, notes = newest_checkpoint(output, model)
    if checkpoint is None:
        notes.append(f"resume auto: no checkpoint in {output}, so the run begins at the beginning")
    return checkpoint, notes


def settings_of(
    model: Model,
    lora: LoRAConfig | None,
    config: TrainConfig,
    dataset: Dataset,
    held_out: Sequence[Item],
    reference: Adapter | None = None,
) -> dict[str, Any]:
    """What decides how a run goes, as JSON has it. lora None: that of the checkpoint. reference: of dpo."""
    settings: dict[str, Any] = {"model": model.name, **asdict(config), **({} if lora is None else asdict(lora))}
    settings |= {"data": dataset.digest, "eval_data": _digest(held_out)}
    if config.method == "dpo":
        settings["reference"] = "the base" if reference is None else reference.content_key()
    return json.loads(json.dumps(settings))


def check_same(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings of the run from now on, and a note if some differ from before.

    With other held-out rows, the search for the best adapter begins anew. Raises ConfigError, one line, when a setting
    differs that must not.
    """
    old = checkpoint.settings
    different = [name for name, value in settings.items() if name in old and old[name] != value]
    words = ", ".join(
        f"{name} (other rows)" if name in ROWS else f"{name} {short(settings[name])} (was {short(old[name])})"
        for name in different
    )
    if any(name in FIXED for name in different):
        raise ConfigError(
            f"resume {checkpoint.path}: the run was started with other settings: {words}; "
            "to train its adapter with these, give it as the adapter to start from"
        )
    if "eval_data" in different:
        progress = checkpoint.progress
        progress.best_step, progress.best_loss, progress.worse, progress.evaluated = -1, float("inf"), 0, -1
    notes = [f"the run goes on with other settings: {words}"] if different else []
    return {**old, **settings}, notes


def clear_output(folder: Path, checkpoint: Checkpoint | None, *, overwrite: bool) -> None:
    """Remove what a killed run left half written, and checkpoints that are not of this run's past.

    Raises ConfigError if there are such and overwrite is not set, InputError if they cannot be removed.
    """
    if not folder.is_dir():
        return
    own = checkpoint is not None and checkpoint.path.parent.resolve() == folder.resolve()
    last = checkpoint.progress.step if checkpoint is not None and own else -1
    foreign = [path for step, path in list_checkpoints(folder) if step > last]
    if foreign and not overwrite:
        raise ConfigError(
            f"output {folder}: holds {foreign[0].name} of another run; "
            'resume it ("auto"), allow to overwrite it, or take another folder'
        )
    remove_leftovers(folder)
    for path in foreign:
        try:
            remove_checkpoint(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be removed: {reason(error)}") from None


def _digest(items: Sequence[Item]) -> str:
    """Equal for the same tokens in the same order, the same of them trained."""
    digest = hashlib.sha256()
    for example in (sequence for item in items for sequence in item.sequences):
        digest.update(len(example).to_bytes(8, "little"))
        digest.update(example.tokens.tobytes())
        digest.update(example.trained.tobytes())
    return digest.hexdigest()[:16]
