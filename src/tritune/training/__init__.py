"""Fine-tuning: settings, the loop, what it tells."""

from tritune.training.config import TrainConfig
from tritune.training.events import Listener, RunStart, StepLog
from tritune.training.progress import TerminalProgress
from tritune.training.trainer import Trainer, mean_loss, train

__all__ = ["Listener", "RunStart", "StepLog", "TerminalProgress", "TrainConfig", "Trainer", "mean_loss", "train"]
