"""The one small interface behind which every tracker stands, and the callback that feeds them.

The names of the curves are those of transformers: train/loss, train/learning_rate, eval/loss, …
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tritune.errors import ConfigError
from tritune.training.events import Callback, EvalLog, RunEnd, RunStart, StepLog


class Tracker(Protocol):
    """Takes a run's numbers. What its package raises ends the tracking, never the run."""

    def start(self, config: Mapping[str, Any], step: int) -> None:
        """A run begins with these settings; ``step`` optimizer steps were done before, in the run that it resumes."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers after ``step`` optimizer steps, by the names of their curves; all of them finite."""
        ...

    def finish(self) -> None:
        """The run has ended: write what is not written yet."""
        ...


# module of the tracker, the class in it, and the package that it needs
_KNOWN = {
    "tensorboard": ("tritune.training.trackers.tensorboard", "TensorBoardTracker", "tensorboard"),
    "wandb": ("tritune.training.trackers.wandb", "WandbTracker", "wandb"),
    "trackio": ("tritune.training.trackers.trackio", "TrackioTracker", "trackio"),
}


def make_trackers(names: str, folder: Path) -> list[Tracker]:
    """The trackers of a comma list such as ``tensorboard,wandb`` (``none``: no tracker) for the run in ``folder``.

    Raises ConfigError for a name that is not known, and for one whose package is not installed.
    """
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if chosen == ["none"]:
        return []
    wrong = next((name for name in chosen if name not in _KNOWN), None)
    if wrong is not None or not chosen:
        raise ConfigError(f"report_to: expected some of {', '.join(_KNOWN)}, or none, found {(wrong or names)!r}")
    return [_make(name, folder) for name in chosen]


def _make(name: str, folder: Path) -> Tracker:
    module, cls, package = _KNOWN[name]
    try:
        import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"report_to {name}: the package {package} is missing ({error}); pip install 'tritune[{name}]'"
        ) from None
    make: Callable[[Path], Tracker] = getattr(import_module(module), cls)
    return make(folder)


class TrackerCallback(Callback):
    """Sends a run's losses, learning rate, gradient norm and speed to trackers."""

    def __init__(self, trackers: Sequence[Tracker], config: Mapping[str, Any]) -> None:
        """config: the settings of the run, which trackers show beside its curves."""
        self._trackers = list(trackers)
        self._config = dict(config)

    def on_start(self, start: RunStart) -> None:
        config = self._config | {"device": start.device, "trainable_parameters": start.trainable_parameters}
        self._each(lambda tracker: tracker.start(config, start.resumed_step))

    def on_log(self, log: StepLog) -> None:
        values = {
            "train/loss": log.loss,
            "train/learning_rate": log.lr,
            "train/grad_norm": log.grad_norm,
            "train/epoch": log.epoch,
            "train/tokens_per_second": log.tokens_per_second,
            "train/skipped_steps": log.skipped_steps,
        }
        self._log(log.step, values | {f"train/{name}": value for name, value in log.metrics.items()})

    def on_eval(self, log: EvalLog) -> None:
        values = {"eval/loss": log.eval_loss, "eval/perplexity": log.eval_perplexity}
        self._log(log.step, values | {f"eval/{name}": value for name, value in log.metrics.items()})

    def on_end(self, end: RunEnd) -> None:
        self._each(lambda tracker: tracker.finish())

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._each(lambda tracker: tracker.log(step, finite))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:  # noqa: BLE001 - somebody else's code, which may raise anything
                self._trackers.remove(tracker)
                told = " ".join(str(error).split())[:200] or type(error).__name__
                warnings.warn(f"{type(tracker).__name__} stops: {told}; the run goes on", stacklevel=2)
