"""The curves of a run, read from its log, and drawn: losses, learning rate, gradient norm and speed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, cast

from tritune.atomic import write_atomic
from tritune.errors import ConfigError, InputError
from tritune.training.log import LOG_NAME

Points = tuple[list[int], list[float]]
"""Steps, and the value after each; NaN where the log has none."""

# panel's title -> the curves in it: event, field, style
PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "loss (nats a token; dashed: held-out rows)": (("step", "loss", "-"), ("eval", "eval_loss", "--")),
    "learning rate": (("step", "lr", "-"),),
    "gradient norm, before clipping": (("step", "grad_norm", "-"),),
    "tokens a second": (("step", "tokens_per_second", "-"),),
}
FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class RunLog:
    """The events of a run."""

    name: str  # the folder or file as it was given
    events: list[dict[str, Any]]

    def curve(self, event: str, field: str) -> Points:
        """The steps at which an event told a field, and its values."""
        steps: list[int] = []
        values: list[float] = []
        for record in self.events:
            step, value = record.get("step"), record.get(field)
            if record.get("event") == event and isinstance(step, int) and field in record:
                steps.append(step)
                values.append(float(value) if isinstance(value, (int, float)) else math.nan)
        return steps, values


def read_log(run: str | Path) -> RunLog:
    """Read the log of a run's folder, or a log file.

    A last line that is torn (a killed run, or one that is writing it now) is left out. Raises InputError for a file
    that is no log, naming the line.
    """
    path = Path(run) / LOG_NAME if Path(run).is_dir() else Path(run)
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: no log of a run: {error.strerror or error}") from None
    lines = text.splitlines()
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record: object = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError
        except (ValueError, RecursionError):
            if number == len(lines) and not text.endswith("\n"):
                break
            raise InputError(f"{path}:{number}: expected one JSON object a line, as a run's log has") from None
        events.append(cast("dict[str, Any]", record))
    if not any(record.get("event") == "step" for record in events):
        raise InputError(f"{path}: holds no step of a run yet")
    return RunLog(str(run), events)


def plot_runs(runs: Sequence[str | Path], output: str | Path) -> Path:
    """Draw the curves of runs, one above the other, into a .png, .svg or .pdf file (needs matplotlib).

    Raises InputError for a log that cannot be read, ConfigError for another format or a missing matplotlib.
    """
    path = Path(output)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"output {path}: expected a name that ends in {', '.join(FORMATS)}")
    try:
        figures: Any = import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigError(f"plot: the package matplotlib is missing ({error}); pip install 'tritune[plot]'") from None
    logs = [read_log(run) for run in runs]
    figure: Any = figures.Figure(figsize=(11, 7), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        for number, log in enumerate(logs):
            for event, field, style in curves:
                steps, values = log.curve(event, field)
                if steps:
                    label = log.name if event == "step" else None
                    mark = "." if len(steps) < 40 else None
                    axes.plot(steps, values, style, color=f"C{number % 10}", label=label, marker=mark)
    figure.axes[0].legend(fontsize=8)
    write_atomic(path, _rendered(figure, path.suffix.lower()[1:]))
    return path


def _rendered(figure: Any, kind: str) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=120)
    return buffer.getvalue()
