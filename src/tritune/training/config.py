"""TrainConfig: the settings of a fine-tuning run."""

from __future__ import annotations

import math
from dataclasses import Field, dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, cast, get_args

from tritune.data.encode import PromptStyle, TrainOn
from tritune.errors import ConfigError
from tritune.formats.fields import short

Schedule = Literal["cosine", "linear", "constant"]
Method = Literal["sft", "dpo"]
METHODS: tuple[Method, ...] = ("sft", "dpo")
SCHEDULES: tuple[Schedule, ...] = ("cosine", "linear", "constant")
PROMPT_STYLES: tuple[PromptStyle, ...] = get_args(PromptStyle)
TRAIN_ON: tuple[TrainOn, ...] = get_args(TrainOn)


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run; the defaults here are the command line's too. Raises ConfigError for a value out of range.

    An optimizer step trains ``grad_accumulation`` times ``batch_tokens`` tokens of packed sequences, in micro-batches
    of ``micro_batch_tokens``; the loss is the sum over the step's trained tokens divided by their number, however they
    fall into micro-batches.
    """

    method: Method = "sft"  # dpo: rows are pairs of answers, of which the better one is to become likelier
    dpo_beta: float = 0.1  # how much a log-probability may move away from the reference's: less, the larger it is
    dpo_label_smoothing: float = 0.0  # share of the pairs that are taken to be the wrong way round
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
    micro_batch_tokens: int = 0  # of one pass through the model; 0 = batch_tokens, or the largest part that fits
    grad_accumulation: int = 1
    packing: bool = True  # fill micro-batches with rows of any length; else rows of similar length share one
    max_seq_len: int = 1024  # longer rows are cut from the left of the prompt, or left out
    prompt_style: PromptStyle = "auto"  # rows without turns: chat (in the template), alpaca, auto; see RowEncoder
    system: str = ""  # system message of all conversations, before one of their own
    train_on: TrainOn = "all"  # answers of a conversation: all, or the last
    seed: int = 42
    log_every: int = 10  # optimizer steps between two reads of the loss
    save_every: int = 0  # optimizer steps between two checkpoints; 0 = only the best and the last
    keep: int = 3  # the newest checkpoints; the best one stays besides
    eval_every: int = 0  # optimizer steps between two evaluations; 0 = ten times in the run
    eval_split: float = 0.0  # held-out rows: below 1 a share of the rows, from 1 their number; 0 = none
    patience: int = 0  # evaluations without a lower loss after which the run stops; 0 = never
    sample_prompts: tuple[str, ...] = ()  # answered at each evaluation
    sample_tokens: int = 64  # most tokens of such an answer
    lora_plus_ratio: float = 1.0  # learning rate of B / that of A (LoRA+: Hayou et al., 2024)
    neftune_alpha: float = 0.0  # noise on the embeddings, ± alpha / √(length · hidden) (Jain et al., 2023); 0 = none
    start_layer: int = 0  # layers below are not trained
    recompute: bool = True  # compute a block's inside again in backward instead of keeping it

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_type(field, getattr(self, field.name))
        part = self.micro_batch_tokens
        checks = (
            ("method", self.method in METHODS, "one of " + ", ".join(METHODS)),
            ("dpo_beta", self.dpo_beta > 0, "a number > 0"),
            ("dpo_label_smoothing", 0 <= self.dpo_label_smoothing < 0.5, "a number in [0, 0.5)"),
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
            ("micro_batch_tokens", part == 0 or 2 <= part <= self.batch_tokens, "0 or a number from 2 to batch_tokens"),
            ("grad_accumulation", self.grad_accumulation >= 1, "a number >= 1"),
            ("max_seq_len", self.max_seq_len >= 2, "a number >= 2"),
            ("prompt_style", self.prompt_style in PROMPT_STYLES, "one of " + ", ".join(PROMPT_STYLES)),
            ("train_on", self.train_on in TRAIN_ON, "one of " + ", ".join(TRAIN_ON)),
            ("seed", 0 <= self.seed < 2**32, "a number in [0, 2^32)"),
            ("log_every", self.log_every >= 1, "a number >= 1"),
            ("save_every", self.save_every >= 0, "a number >= 0 (0 = only the best and the last)"),
            ("keep", self.keep >= 1, "a number >= 1"),
            ("eval_every", self.eval_every >= 0, "a number >= 0 (0 = ten times in the run)"),
            ("eval_split", self.eval_split >= 0, "a number >= 0 (0 = no held-out rows)"),
            ("patience", self.patience >= 0, "a number >= 0 (0 = off)"),
            ("sample_tokens", self.sample_tokens >= 1, "a number >= 1"),
            ("lora_plus_ratio", self.lora_plus_ratio > 0, "a number > 0"),
            ("neftune_alpha", self.neftune_alpha >= 0, "a number >= 0 (0 = no noise)"),
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
        elif isinstance(default, tuple):
            fits = isinstance(value, tuple) and all(isinstance(item, str) for item in cast("tuple[Any, ...]", value))
            expected = "a tuple of texts"
        else:
            fits, expected = isinstance(value, str), "a name"
        if not fits:
            raise ConfigError(f"{field.name}: expected {expected}, found {short(value)}")


def micro_batches_of(config: TrainConfig) -> int:
    """Micro-batches of an optimizer step."""
    return config.grad_accumulation * -(-config.batch_tokens // (config.micro_batch_tokens or config.batch_tokens))


def warmup_steps(config: TrainConfig, total: int) -> int:
    """Steps of the warmup, of ``total`` (a share is rounded up, as in transformers)."""
    return math.ceil(config.warmup * total) if config.warmup < 1 else int(config.warmup)


def learning_rate(config: TrainConfig, step: float, total: int) -> float:
    """The rate of optimizer step ``step`` (from 0; of a run that counts rows, a place between two) of ``total``: linear
    warmup, then the schedule, as in transformers."""
    warm = warmup_steps(config, total)
    if step < warm:
        return config.lr * step / warm
    progress = (step - warm) / max(1, total - warm)
    if config.schedule == "cosine":
        return config.lr * max(0.0, 0.5 * (1 + math.cos(math.pi * progress)))
    if config.schedule == "linear":
        return config.lr * max(0.0, 1 - progress)
    return config.lr
