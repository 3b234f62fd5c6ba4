"""Fine-tuning: settings, the loop, what it tells."""

from tritune.training.config import TrainConfig
from tritune.training.events import Callback, EvalLog, RunEnd, RunStart, SampleLog, StepLog
from tritune.training.progress import TerminalProgress
from tritune.training.run import mean_loss, train

__all__ = [
    "Callback",
    "EvalLog",
    "RunEnd",
    "RunStart",
    "SampleLog",
    "StepLog",
    "TerminalProgress",
    "TrainConfig",
    "mean_loss",
    "train",
]
