"""LoRAConfig: which projections get an adapter, of which rank and scale."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tritune.errors import ConfigError
from tritune.models.config import ModelConfig
from tritune.models.linears import PROJECTIONS, module_path

Number = TypeVar("Number", int, float)

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class LoRAConfig:
    """The settings of an adapter, under the field's names (peft's own are in lora/peft.py).

    target_modules: ``"all-linear"``; a list of names, where a module's path equals the entry or ends with
    ``"." + entry``; or a regular expression that must match the whole path (``model.layers.0.self_attn.q_proj``).
    layers: indices of the layers to adapt; None means all. rank_pattern and alpha_pattern override rank and alpha where
    ``(.*\\.)?(pattern)$`` matches the path; the first that does wins.
    """

    rank: int = 16
    alpha: float = 32.0
    target_modules: str | tuple[str, ...] | list[str] = ALL_LINEAR
    dropout: float = 0.0
    rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict[str, int])
    alpha_pattern: Mapping[str, float] = field(default_factory=dict[str, float])
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"LoRA rank: expected a number >= 1, found {self.rank}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"LoRA dropout: expected a number in [0, 1), found {self.dropout}")
        for pattern, rank in self.rank_pattern.items():
            if rank < 1:
                raise ConfigError(f"LoRA rank_pattern {pattern!r}: expected a rank >= 1, found {rank}")

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
        if not 0 <= layer < model.num_layers:
            raise ConfigError(f"LoRA layers: {layer} is not one of the model's layers 0 … {model.num_layers - 1}")
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
