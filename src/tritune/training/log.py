"""The log file of a run: one JSON object a line."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from tritune.atomic import reason
from tritune.errors import InputError
from tritune.training.events import Listener, RunStart, StepLog


class JsonlLog(Listener):
    """Writes ``train.jsonl`` into the run's folder, a line a log event.

    Each line is flushed, so a killed run keeps its log. Raises InputError where it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "train.jsonl"

    def on_start(self, start: RunStart) -> None:
        self._write("", "w")
        self._append(
            {
                "event": "start",
                "device": start.device,
                "examples": start.num_examples,
                "total_steps": start.total_steps,
                "trainable_parameters": start.trainable_parameters,
            }
        )

    def on_log(self, log: StepLog) -> None:
        numbers = asdict(log)
        for name, value in numbers.items():  # JSON knows no NaN
            if isinstance(value, float) and not math.isfinite(value):
                numbers[name] = None
        self._append({"event": "step", **numbers})

    def on_save(self, path: Path, step: int) -> None:
        self._append({"event": "save", "step": step, "path": str(path)})

    def _append(self, record: dict[str, object]) -> None:
        self._write(json.dumps(record) + "\n", "a")

    def _write(self, text: str, mode: Literal["w", "a"]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {reason(error)}") from None
