"""LoRAConfig: which projections get an adapter, of which rank and scale."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard, TypeVar, cast

from tritune.errors import ConfigError
from tritune.formats.fields import is_integer, is_number, short
from tritune.models.config import ModelConfig
from tritune.models.linears import PROJECTIONS, module_path

Number = TypeVar("Number", int, float)

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class LoRAConfig:
    """The settings of an adapter, under the field's names (peft's own are in lora/peft_config.py).

    target_modules: ``"all-linear"``; a list of names, where a module's path equals the entry or ends with
    ``"." + entry``; or a regular expression that must match the whole path (``model.layers.0.self_attn.q_proj``).
    rank_pattern and alpha_pattern override rank and alpha where ``(.*\\.)?(pattern)$`` matches the path; the first that
    does wins. Raises ConfigError for a value out of range.
    """

    rank: int = 16  # rows of A and columns of B
    alpha: float = 32.0  # the correction is scaled by alpha / rank
    target_modules: str | tuple[str, ...] | list[str] = ALL_LINEAR  # which projections get an adapter
    dropout: float = 0.0  # share of the adapter's inputs that is dropped in training
    rslora: bool = False  # scale by alpha / √rank
    rank_pattern: Mapping[str, int] = field(default_factory=dict[str, int])  # other ranks, by pattern
    alpha_pattern: Mapping[str, float] = field(default_factory=dict[str, float])  # other alphas, by pattern
    layers: tuple[int, ...] | None = None  # layers to adapt, by index; None = all

    def __post_init__(self) -> None:
        _expect("rank", self.rank, _is_rank(self.rank), "an integer >= 1")
        _expect("alpha", self.alpha, _is_alpha(self.alpha), "a finite number >= 0")
        _expect("dropout", self.dropout, is_number(self.dropout) and 0 <= self.dropout < 1, "a number in [0, 1)")
        modules: object = self.target_modules
        names = isinstance(modules, list | tuple) and all(
            isinstance(name, str) for name in cast("list[object]", modules)
        )
        _expect("target_modules", modules, isinstance(modules, str) or names, "a string or a list of module names")
        for pattern, rank in self.rank_pattern.items():
            _expect(f"rank_pattern {pattern!r}", rank, _is_rank(rank), "an integer >= 1")
        for pattern, alpha in self.alpha_pattern.items():
            _expect(f"alpha_pattern {pattern!r}", alpha, _is_alpha(alpha), "a finite number >= 0")

    @property
    def scale(self) -> float:
        """What B·A·x is multiplied with where no pattern says otherwise."""
        return lora_scale(self.alpha, self.rank, self.rslora)


@dataclass(frozen=True)
class Target:
    """One adapted projection."""

    layer: int
    projection: str
    rank: int
    alpha: float
    scale: float


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number that a float can hold; integers may be larger."""
    return is_number(value) and abs(value) <= sys.float_info.max


def _expect(setting: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise ConfigError(f"LoRA {setting}: expected {expected}, found {short(value)}")


def _is_rank(value: object) -> bool:
    return is_integer(value) and value >= 1


def _is_alpha(value: object) -> bool:
    return is_finite_number(value) and value >= 0


def lora_scale(alpha: float, rank: int, rslora: bool) -> float:
    """alpha / rank, or alpha / √rank (rank-stabilised LoRA: Kalajdzievski, 2023)."""
    return alpha / (rank**0.5 if rslora else rank)


def resolve_targets(config: LoRAConfig, model: ModelConfig) -> tuple[Target, ...]:
    """The projections that a configuration adapts in a model, in the model's order.

    Raises ConfigError when an entry of target_modules, a layer or a pattern matches nothing, or a regular expression is
    not valid.
    """
    layers = _layers(config, model)
    targets: list[Target] = []
    for layer in layers:
        for projection in PROJECTIONS:
            path = module_path(layer, projection)
            if _is_target(config.target_modules, path):
                rank = _override(config.rank_pattern, path, config.rank)
                alpha = float(_override(config.alpha_pattern, path, config.alpha))
                targets.append(Target(layer, projection, int(rank), alpha, lora_scale(alpha, int(rank), config.rslora)))
    _check_all_matched(config, targets)
    return tuple(targets)


def _layers(config: LoRAConfig, model: ModelConfig) -> list[int]:
    if config.layers is None:
        return list(range(model.num_layers))
    for layer in config.layers:
        if not is_integer(layer) or not 0 <= layer < model.num_layers:
            raise ConfigError(
                f"LoRA layers: {short(layer)} is not one of the model's layers 0 … {model.num_layers - 1}"
            )
    return sorted(set(config.layers))


def _is_target(modules: str | tuple[str, ...] | list[str], path: str) -> bool:
    if isinstance(modules, str):
        return modules == ALL_LINEAR or _compile(modules, "target_modules").fullmatch(path) is not None
    return any(path == entry or path.endswith("." + entry) for entry in modules)


def _override(patterns: Mapping[str, Number], path: str, default: Number) -> Number:
    for pattern, value in patterns.items():
        if _compile(rf"(.*\.)?({pattern})$", "pattern").match(path):
            return value
    return default


def _compile(pattern: str, what: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"LoRA {what} {pattern!r}: not a valid regular expression ({error})") from None


def _check_all_matched(config: LoRAConfig, targets: list[Target]) -> None:
    paths = [module_path(target.layer, target.projection) for target in targets]
    if not paths:
        raise ConfigError(f"LoRA target_modules {config.target_modules!r}: no linear of the model matches")
    if not isinstance(config.target_modules, str):
        for entry in config.target_modules:
            if not any(_is_target((entry,), path) for path in paths):
                raise ConfigError(
                    f"LoRA target_modules: no linear of the model matches {entry!r} (expected {', '.join(PROJECTIONS)})"
                )
    for name, patterns in (("rank_pattern", config.rank_pattern), ("alpha_pattern", config.alpha_pattern)):
        for pattern in patterns:
            compiled = _compile(rf"(.*\.)?({pattern})$", name)
            if not any(compiled.match(path) for path in paths):
                raise ConfigError(f"LoRA {name}: no adapted linear matches {pattern!r}")
