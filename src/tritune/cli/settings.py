"""The settings of LoRAConfig and TrainConfig as flags.

The dataclasses are the only source of defaults and types; here are the names that users of peft, mlx-lm and
transformers know, and the help.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

import click

from tritune.lora.config import LoRAConfig
from tritune.training.config import METHODS, PROMPT_STYLES, SCHEDULES, TRAIN_ON, TrainConfig

Command = TypeVar("Command", bound=Callable[..., Any])

NAMES = re.compile(r"[\w.,\s-]+")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class TargetModules(click.ParamType[Any]):
    """``all-linear``, a comma list of names, or a regular expression (all that has characters which no name has)."""

    name = "modules"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | tuple[str, ...]:
        if not isinstance(value, str) or value == "all-linear" or not NAMES.fullmatch(value):
            return value
        return tuple(name.strip() for name in value.split(",") if name.strip())


class Layers(click.ParamType[Any]):
    """Layer numbers such as ``0-3,7``."""

    name = "layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if not isinstance(value, str):
            return value
        layers: list[int] = []
        for part in value.split(","):
            match = RANGE.fullmatch(part.strip())
            if match is None or int(match[2] or match[1]) > 1 << 16:
                self.fail(f"{value!r} is not a list of layers such as 0-3,7", param, ctx)
            layers += range(int(match[1]), int(match[2] or match[1]) + 1)
        if not layers:
            self.fail(f"{value!r} names no layer", param, ctx)
        return tuple(layers)


class PatternItem(click.ParamType[Any]):
    """``NAME=NUMBER``: a module's name or pattern, and the rank or alpha that it gets."""

    name = "pattern"

    def __init__(self, number: type[int] | type[float]) -> None:
        self.number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if not isinstance(value, str):
            return value
        pattern, _, number = value.rpartition("=")
        try:
            return (
                (pattern, self.number(number)) if pattern else self.fail(f"{value!r} has no module's name", param, ctx)
            )
        except ValueError:
            self.fail(f"{value!r}: expected a name and a number, such as q_proj=8", param, ctx)


@dataclass(frozen=True)
class Setting:
    """A field of a config dataclass, its flags and its help."""

    field: str
    flags: tuple[str, ...]
    help: str


LORA = (
    Setting("rank", ("-r", "--rank", "--lora-r"), "Rank of the adapter."),
    Setting("alpha", ("--alpha", "--lora-alpha"), "The correction is scaled by alpha / rank."),
    Setting(
        "target_modules",
        ("--target-modules",),
        "Which projections get an adapter: all-linear, a comma list such as q_proj,v_proj, or a regular expression.",
    ),
    Setting("dropout", ("--dropout", "--lora-dropout"), "Share of the adapter's inputs that is dropped in training."),
    Setting("rslora", ("--rslora/--no-rslora",), "Scale by alpha / √rank."),
    Setting(
        "layers", ("--layers", "--layers-to-transform"), "Layers that get an adapter, such as 0-3,7.  [default: all]"
    ),
    Setting(
        "rank_pattern",
        ("--rank-pattern",),
        "Another rank for some projections, such as q_proj=8 or layers.0.mlp.up_proj=4; may be given repeatedly.",
    ),
    Setting("alpha_pattern", ("--alpha-pattern",), "Another alpha for some projections; may be given repeatedly."),
)

TRAIN = (
    Setting(
        "method", ("--method", "--loss"), "sft: learn the answers. dpo: learn to prefer chosen to rejected answers."
    ),
    Setting("dpo_beta", ("--dpo-beta",), "How strongly dpo holds on to the base, or to the adapter it starts from."),
    Setting(
        "dpo_label_smoothing",
        ("--dpo-label-smoothing",),
        "Share of the pairs that dpo takes to be wrong.",
    ),
    Setting("lr", ("--learning-rate", "--lr"), "Learning rate after the warmup."),
    Setting("epochs", ("--epochs", "--num-train-epochs"), "Passes over the rows; may be a fraction."),
    Setting("max_steps", ("--max-steps", "--iters"), "Optimizer steps; 0 = as many as the epochs have."),
    Setting("batch_tokens", ("--batch-tokens",), "Tokens of packed rows in a batch."),
    Setting(
        "micro_batch_tokens",
        ("--micro-batch-tokens",),
        "Tokens that go through the model at once; 0 = the batch, or the largest part of it that fits the memory.",
    ),
    Setting(
        "grad_accumulation",
        ("--grad-accumulation", "--gradient-accumulation-steps", "--grad-accumulation-steps"),
        "Batches of an optimizer step.",
    ),
    Setting(
        "max_seq_len",
        ("--max-seq-len", "--max-seq-length"),
        "Most tokens of a row; longer prompts are cut from the left, longer answers left out.",
    ),
    Setting(
        "packing",
        ("--packing/--no-packing",),
        "Fill micro-batches with rows of any length; else rows of similar length share one.",
    ),
    Setting(
        "prompt_style",
        ("--prompt-style",),
        "What becomes of rows without turns. chat: turns in the model's template. alpaca: plain text, Alpaca rows in "
        "the classic prompt. auto: chat for Alpaca rows if the model has a template, else plain text.",
    ),
    Setting("system", ("--system",), "A system message for all conversations, before one of their own."),
    Setting("train_on", ("--train-on",), "Which answers of a conversation are trained."),
    Setting("schedule", ("--schedule", "--lr-scheduler-type"), "The learning rate's course after the warmup."),
    Setting("warmup", ("--warmup", "--warmup-steps"), "Below 1: share of all steps; from 1: number of steps."),
    Setting("weight_decay", ("--weight-decay",), "AdamW's weight decay."),
    Setting("clip", ("--clip", "--max-grad-norm"), "Largest norm of the gradient; 0 = no clipping."),
    Setting("beta1", ("--beta1", "--adam-beta1"), "AdamW's beta1."),
    Setting("beta2", ("--beta2", "--adam-beta2"), "AdamW's beta2."),
    Setting("eps", ("--eps", "--adam-epsilon"), "AdamW's epsilon."),
    Setting("seed", ("--seed",), "Seed of the first weights, the order of the rows and dropout."),
    Setting("log_every", ("--log-every", "--logging-steps"), "Steps between two readings of the loss."),
    Setting(
        "save_every",
        ("--save-every", "--save-steps", "--steps-per-save"),
        "Steps between two checkpoints; 0 = only the best and the last.",
    ),
    Setting("keep", ("--keep", "--save-total-limit"), "Newest checkpoints to keep; the best one stays besides."),
    Setting(
        "eval_every",
        ("--eval-every", "--eval-steps", "--steps-per-eval"),
        "Steps between two evaluations of the held-out rows; 0 = ten times in the run.",
    ),
    Setting(
        "eval_split",
        ("--eval-split", "--val-set-size"),
        "Rows of the data to hold out and evaluate: below 1 a share, from 1 their number; 0 = none.",
    ),
    Setting(
        "patience",
        ("--patience", "--early-stopping-patience"),
        "Stop after so many evaluations without a lower loss; 0 = never.",
    ),
    Setting("sample_prompts", ("--sample-prompt",), "A prompt to answer at each evaluation; may be given repeatedly."),
    Setting("sample_tokens", ("--sample-tokens",), "Most tokens of such an answer."),
    Setting(
        "neftune_alpha",
        ("--neftune-alpha", "--neftune-noise-alpha"),
        "Noise on the embeddings that are trained on, ± alpha / √(length · hidden size); 0 = none.",
    ),
    Setting("lora_plus_ratio", ("--lora-plus-ratio", "--loraplus-lr-ratio"), "Learning rate of B / that of A (LoRA+)."),
    Setting("start_layer", ("--start-layer",), "Layers below this one are not trained."),
    Setting(
        "recompute",
        ("--recompute/--no-recompute",),
        "Compute a block's inside again in the backward pass, which takes less memory and more time.",
    ),
)


def defaults(config: type) -> dict[str, Any]:
    """The defaults of a config dataclass by field."""
    return {
        field.name: field.default_factory() if field.default is MISSING else field.default  # type: ignore[misc]
        for field in fields(config)
    }


DEFAULTS: dict[str, Any] = {**defaults(LoRAConfig), **defaults(TrainConfig)}


def flag_type(field: str) -> click.ParamType[Any]:
    """How the text of a flag becomes the value of a field."""
    special: dict[str, click.ParamType[Any]] = {
        "target_modules": TargetModules(),
        "layers": Layers(),
        "schedule": click.Choice(SCHEDULES),
        "method": click.Choice(METHODS),
        "rank_pattern": PatternItem(int),
        "alpha_pattern": PatternItem(float),
        "sample_prompts": click.STRING,
        "prompt_style": click.Choice(PROMPT_STYLES),
        "train_on": click.Choice(TRAIN_ON),
    }
    plain: dict[type, click.ParamType[Any]] = {bool: click.BOOL, int: click.INT, float: click.FLOAT, str: click.STRING}
    return special.get(field) or plain[type(DEFAULTS[field])]


def _as_dict(_context: click.Context, _option: click.Parameter, items: Any) -> dict[str, Any]:
    return dict(items)


def setting_options(settings: tuple[Setting, ...]) -> Callable[[Command], Command]:
    """Give a command the flags of some settings; each arrives under its field's name."""

    def decorate(command: Command) -> Command:
        for setting in reversed(settings):
            default = DEFAULTS[setting.field]
            many = isinstance(default, (dict, tuple))
            command = click.option(
                *setting.flags,
                setting.field,
                type=flag_type(setting.field),
                default=() if many else default,
                multiple=many,
                callback=_as_dict if isinstance(default, dict) else None,
                show_default=not many and default != "",
                help=setting.help,
            )(command)
        return command

    return decorate


def keys_of(setting: Setting) -> set[str]:
    """The names under which a config file may set it: the field, and its long flags with _ for -."""
    long = {flag.split("/")[0].removeprefix("--").replace("-", "_") for flag in setting.flags if flag.startswith("--")}
    return long | {setting.field}


def split(values: Mapping[str, Any], config: type) -> dict[str, Any]:
    """Those of the values that are fields of a config dataclass."""
    return {field.name: values[field.name] for field in fields(config) if field.name in values}
