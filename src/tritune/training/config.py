"""TrainConfig: the settings of a fine-tuning run."""

from __future__ import annotations

import math
from dataclasses import Field, dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

from tritune.errors import ConfigError
from tritune.formats.fields import short

Schedule = Literal["cosine", "linear", "constant"]
SCHEDULES: tuple[Schedule, ...] = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run; the defaults here are the command line's too. Raises ConfigError for a value out of range.

    An optimizer step trains ``grad_accumulation`` micro-batches of packed sequences, each at most ``batch_tokens``
    tokens; the loss is the sum over its trained tokens divided by their number, however they fall into micro-batches.
    """

    lr: float = 2e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 1.0  # largest norm of the gradient; 0 = no clipping
    schedule: Schedule = "cosine"
    warmup: float = 0.05  # below 1: share of all steps, from 1: number of steps
    epochs: float = 1.0
    max_steps: int = 0  # optimizer steps; 0 = as many as the epochs have
    batch_tokens: int = 1024
    grad_accumulation: int = 1
    max_seq_len: int = 1024  # longer rows are cut from the left of the prompt, or left out
    seed: int = 42
    log_every: int = 10  # optimizer steps between two reads of the loss
    save_every: int = 0  # optimizer steps between two checkpoints; 0 = only at the end
    start_layer: int = 0  # layers below are not trained
    recompute: bool = True  # compute a block's inside again in backward instead of keeping it

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_type(field, getattr(self, field.name))
        checks = (
            ("lr", self.lr > 0, "a number > 0"),
            ("beta1", 0 <= self.beta1 < 1, "a number in [0, 1)"),
            ("beta2", 0 <= self.beta2 < 1, "a number in [0, 1)"),
            ("eps", self.eps > 0, "a number > 0"),
            ("weight_decay", self.weight_decay >= 0, "a number >= 0"),
            ("clip", self.clip >= 0, "a number >= 0 (0 = off)"),
            ("schedule", self.schedule in SCHEDULES, "one of " + ", ".join(SCHEDULES)),
            ("warmup", self.warmup >= 0, "a number >= 0"),
            ("epochs", self.epochs > 0, "a number > 0"),
            ("max_steps", self.max_steps >= 0, "a number >= 0 (0 = by epochs)"),
            ("batch_tokens", self.batch_tokens >= 2, "a number >= 2"),
            ("grad_accumulation", self.grad_accumulation >= 1, "a number >= 1"),
            ("max_seq_len", self.max_seq_len >= 2, "a number >= 2"),
            ("seed", 0 <= self.seed < 2**32, "a number in [0, 2^32)"),
            ("log_every", self.log_every >= 1, "a number >= 1"),
            ("save_every", self.save_every >= 0, "a number >= 0 (0 = only at the end)"),
            ("start_layer", self.start_layer >= 0, "a number >= 0"),
        )
        for name, fine, expected in checks:
            if not fine:
                raise ConfigError(f"{name}: expected {expected}, found {getattr(self, name)}")

    @staticmethod
    def _check_type(field: Field[Any], value: Any) -> None:
        """A value of the kind of the field's default; any finite number will do for a float."""
        default: object = field.default
        if isinstance(default, bool):
            fits, expected = isinstance(value, bool), "true or false"
        elif isinstance(default, int):
            fits, expected = not isinstance(value, bool) and isinstance(value, Integral), "a whole number"
        elif isinstance(default, float):
            fits = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
            expected = "a finite number"
        else:
            fits, expected = isinstance(value, str), "a name"
        if not fits:
            raise ConfigError(f"{field.name}: expected {expected}, found {short(value)}")


def warmup_steps(config: TrainConfig, total: int) -> int:
    """Steps of the warmup, of ``total`` (a share is rounded up, as in transformers)."""
    return math.ceil(config.warmup * total) if config.warmup < 1 else int(config.warmup)


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """The rate of optimizer step ``step`` (from 0) of ``total``: linear warmup, then the schedule, as in
    transformers."""
    warm = warmup_steps(config, total)
    if step < warm:
        return config.lr * step / warm
    progress = (step - warm) / max(1, total - warm)
    if config.schedule == "cosine":
        return config.lr * max(0.0, 0.5 * (1 + math.cos(math.pi * progress)))
    if config.schedule == "linear":
        return config.lr * max(0.0, 1 - progress)
    return config.lr
