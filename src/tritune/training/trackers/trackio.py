"""trackio: a local data base (TRACKIO_DIR), which ``trackio show`` displays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_trackio: Any = import_module("trackio")

PROJECT = "tritune"


class TrackioTracker:
    """See Tracker. A run is named after its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Any = None

    def start(self, config: Mapping[str, Any], step: int) -> None:
        self._run = _trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=self._folder.resolve().name,
            config=dict(config),
            resume="allow" if step else "never",
            embed=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        if self._run is not None:
            self._run.finish()
