"""Weights & Biases. Its own environment variables hold: WANDB_PROJECT, WANDB_MODE=offline, WANDB_API_KEY, …"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_wandb: Any = import_module("wandb")

PROJECT = "tritune"


class WandbTracker:
    """See Tracker. A run is named after its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Any = None

    def start(self, config: Mapping[str, Any], step: int) -> None:
        del step  # a resumed run is a new one here, whose steps go on
        self._run = _wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", self._folder.resolve().name),
            dir=str(self._folder),
            config=dict(config),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        if self._run is not None:
            self._run.finish()
