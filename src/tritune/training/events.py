"""What a run tells while it goes: a small interface, so that a terminal, a log file or a user's code can listen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunStart:
    """What is known before the first step."""

    device: str
    num_examples: int
    total_steps: int
    trainable_parameters: int
    first_example: str  # decoded, what is trained in ⟦brackets⟧
    notes: Sequence[str]  # about rows that were cut or left out


@dataclass(frozen=True)
class StepLog:
    """The mean over the steps since the last log."""

    step: int
    total_steps: int
    epoch: float
    loss: float  # nats per trained token; NaN when every step was skipped
    lr: float
    grad_norm: float  # of the last step, before clipping
    tokens: int  # trained tokens since the last log
    rows: int  # tokens that went through the model since the last log
    seconds: float  # since the start of the run
    tokens_per_second: float  # rows per second since the last log
    skipped_steps: int  # in all, because their gradient was not finite


class Listener:
    """Override what is of interest."""

    def on_start(self, start: RunStart) -> None:
        """Before the first step."""

    def on_step(self, step: int) -> None:
        """``step`` optimizer steps were handed to the device."""

    def on_log(self, log: StepLog) -> None:
        """Every log_every steps, and after the last."""

    def on_save(self, path: Path, step: int) -> None:
        """The adapter was saved."""

    def on_end(self) -> None:
        """After the last step, or when the run stops for any reason."""
