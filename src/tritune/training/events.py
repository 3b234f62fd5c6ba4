"""What a run tells while it goes: a small interface, so that a terminal, a log file or a user's code can listen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

EndReason = Literal["finished", "patience", "interrupted", "failed"]


@dataclass(frozen=True)
class RunStart:
    """What is known before the first step."""

    device: str
    num_examples: int
    total_steps: int
    trainable_parameters: int
    first_example: str  # decoded, what is trained in ⟦brackets⟧
    notes: Sequence[str]  # about rows that were cut or left out, memory, and settings that a resumed run changes
    num_eval_examples: int = 0
    resumed_step: int = 0  # steps that were done before, in the run that this one goes on with


@dataclass(frozen=True)
class StepLog:
    """The mean over the steps since the last log. In dpo the loss is per pair, and ``tokens`` counts pairs."""

    step: int
    total_steps: int
    epoch: float
    loss: float  # nats per trained token; NaN when every step was skipped
    lr: float
    grad_norm: float  # of the last step, before clipping
    tokens: int  # trained tokens since the last log
    rows: int  # tokens that went through the model since the last log
    seconds: float  # since the start of the run
    tokens_per_second: float  # rows per second since the last log; evaluations and saving are not counted
    skipped_steps: int  # in all, because their gradient was not finite
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # of dpo: rewards/…, logps/… as in TRL


@dataclass(frozen=True)
class EvalLog:
    """The loss of the held-out rows after ``step`` optimizer steps; in dpo per pair, as in StepLog."""

    step: int
    eval_loss: float  # nats per trained token, over all of them: not a mean of means
    eval_perplexity: float  # exp(eval_loss); NaN in dpo
    eval_tokens: int  # trained tokens of the held-out rows
    seconds: float  # that the evaluation took
    best: bool  # no earlier evaluation of the run had a lower loss
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # of dpo: rewards/…, logps/… as in TRL


@dataclass(frozen=True)
class SampleLog:
    """What the model says to a prompt of the settings, beside an evaluation."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class RunEnd:
    """How a run ended."""

    step: int
    reason: EndReason
    best_step: int | None = None  # of the lowest loss on held-out rows; None without them
    best_eval_loss: float | None = None
    notes: Sequence[str] = ()  # about rows that were cut or left out, as far as they were not told at the start


class Callback:
    """Override what is of interest. All methods are called in the run's own thread, between two steps."""

    def on_start(self, start: RunStart) -> None:
        """Before the first step."""

    def on_step(self, step: int) -> None:
        """``step`` optimizer steps were handed to the device."""

    def on_log(self, log: StepLog) -> None:
        """Every log_every steps, and after the last."""

    def on_eval(self, log: EvalLog) -> None:
        """The held-out rows were measured: before the first step, every eval_every steps, and after the last."""

    def on_sample(self, sample: SampleLog) -> None:
        """A text was generated for one of the sample_prompts."""

    def on_save(self, path: Path, step: int) -> None:
        """The adapter was saved."""

    def on_end(self, end: RunEnd) -> None:
        """After the last step, or when the run stops for any reason."""
