"""The log file of a run: one JSON object a line."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from tritune.atomic import reason, write_atomic
from tritune.errors import InputError
from tritune.training.events import Callback, EvalLog, RunEnd, RunStart, SampleLog, StepLog

LOG_NAME = "log.jsonl"


class JsonlLog(Callback):
    """Writes ``log.jsonl`` into the run's folder, a line an event: start, step, eval, sample, save, end.

    The fields are those of tritune.training's StepLog, EvalLog and so on; a number that is not finite is null. Each
    line is flushed, so a killed run keeps its log. A resumed run goes on in the same file: what the stopped one told
    about later steps is taken out. Raises InputError where it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG_NAME

    def on_start(self, start: RunStart) -> None:
        write_atomic(self.path, "".join(self._lines_up_to(start.resumed_step)).encode())
        self._append(
            {
                "event": "resume" if start.resumed_step else "start",
                **({"step": start.resumed_step} if start.resumed_step else {}),
                "device": start.device,
                "examples": start.num_examples,
                "eval_examples": start.num_eval_examples,
                "total_steps": start.total_steps,
                "trainable_parameters": start.trainable_parameters,
            }
        )

    def on_log(self, log: StepLog) -> None:
        self._append({"event": "step", **_flat(log)})

    def on_eval(self, log: EvalLog) -> None:
        self._append({"event": "eval", **_flat(log)})

    def on_sample(self, sample: SampleLog) -> None:
        self._append({"event": "sample", **asdict(sample)})

    def on_save(self, path: Path, step: int) -> None:
        self._append({"event": "save", "step": step, "path": str(path)})

    def on_end(self, end: RunEnd) -> None:
        self._append({"event": "end", **asdict(end)})

    def _lines_up_to(self, step: int) -> list[str]:
        """The lines of the file about the first ``step`` steps (none for a run from the beginning)."""
        if not step or not self.path.is_file():
            return []
        lines: list[str] = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            try:
                record: object = json.loads(line)
            except ValueError:  # the line during which the run was killed
                continue
            fields = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
            told: object = fields.get("step", 0)
            if fields.get("event") != "end" and isinstance(told, int) and told <= step:
                lines.append(line if line.endswith("\n") else line + "\n")
        return lines

    def _append(self, record: dict[str, Any]) -> None:
        for name, value in record.items():  # JSON knows no NaN
            if isinstance(value, float) and not math.isfinite(value):
                record[name] = None
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {reason(error)}") from None


def _flat(log: StepLog | EvalLog) -> dict[str, Any]:
    """The fields of a log, its metrics beside the others."""
    fields = asdict(log)
    return fields | fields.pop("metrics")
