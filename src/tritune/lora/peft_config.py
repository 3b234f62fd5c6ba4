"""adapter_config.json, the settings of a PEFT adapter: reading it strictly, and writing it so that peft reads it back.

The field names and their meaning are those of peft's LoraConfig (peft 0.21, tuners/lora/config.py and
tuners/tuners_utils.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from tritune.errors import AdapterError
from tritune.formats.fields import Fields, is_integer, short
from tritune.lora.config import Target, is_finite_number
from tritune.lora.patterns import Pattern, ends_with, plain
from tritune.models.config import ModelConfig
from tritune.models.linears import PROJECTIONS, module_path

Number = TypeVar("Number", int, float)
Module = tuple[int, str]
"""(layer, projection)."""

PEFT_VERSION = "0.21.0"
"""The release of peft whose format is written."""

# fmt: off
READ = frozenset((
    "peft_type", "base_model_name_or_path", "r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern",
    "alpha_pattern", "target_modules", "exclude_modules", "layers_to_transform", "bias", "init_lora_weights",
))
HARMLESS = frozenset((
    "auto_mapping", "task_type", "inference_mode", "peft_version", "revision", "layers_pattern", "fan_in_fan_out",
    "megatron_core", "qalora_group_size", "runtime_config", "ensure_weight_tying", "eva_config", "corda_config",
    "lora_ga_config", "loftq_config",
))
# fmt: on
"""Fields about how the adapter was made; the correction that its tensors stand for is the same. Every field that is
neither here nor in READ must be null, false or empty: it asks for something that would not be computed."""

# The other ways (PiSSA, OLoRA, CorDA, LoRA-GA, LoftQ …) change the base's weights too; peft can convert them when it
# saves, and then says true here.
PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class PeftConfig:
    """What a file says, checked by type."""

    where: str
    base_model: str
    rank: int
    alpha: float
    dropout: float
    rslora: bool
    rank_pattern: tuple[tuple[Pattern, int], ...]
    alpha_pattern: tuple[tuple[Pattern, float], ...]
    targets: tuple[str, ...] | None  # None where the file has a regular expression, which is never run
    excluded: tuple[str, ...] | None  # the same
    layers: frozenset[int] | None

    def rank_of(self, path: str) -> int:
        """The rank that the file gives to a module."""
        return next((rank for pattern, rank in self.rank_pattern if pattern.matches(path)), self.rank)

    def alpha_of(self, path: str) -> float:
        """The alpha that the file gives to a module."""
        return next((alpha for pattern, alpha in self.alpha_pattern if pattern.matches(path)), self.alpha)

    def check_promises(self, found: Iterable[Module], model: ModelConfig) -> None:
        """Raise AdapterError when target_modules or layers_to_transform name a module that has no tensors."""
        paths = {module_path(*module) for module in found}
        for layer in sorted(self.layers or ()):
            if not any(path.startswith(f"model.layers.{layer}.") for path in paths):
                raise AdapterError(f"{self.where}: layers_to_transform promises layer {layer}, which has no tensors")
        if self.targets is None or self.excluded is None:
            return
        for entry in self.targets:
            if not any(ends_with(path, entry) for path in paths):
                raise AdapterError(f"{self.where}: target_modules promises {short(entry)}, which has no tensors")
        for layer in range(model.num_layers):
            for path in (module_path(layer, projection) for projection in PROJECTIONS):
                if self._promises(layer, path) and path not in paths:
                    raise AdapterError(f"{self.where}: target_modules promises {path}, which has no tensors")

    def _promises(self, layer: int, path: str) -> bool:
        if any(ends_with(path, entry) for entry in self.excluded or ()):
            return False
        # As in peft, a full path holds whatever layers_to_transform says.
        if path in (self.targets or ()):
            return True
        in_layers = self.layers is None or layer in self.layers
        return in_layers and any(ends_with(path, entry) for entry in self.targets or ())


def parse_peft_config(mapping: Mapping[str, Any], where: str) -> PeftConfig:
    """Check a file's fields. Raises AdapterError or ModelFileError that name the field."""
    fields = Fields(mapping, where)
    _check_supported(fields)
    dropout = 0.0 if "lora_dropout" not in fields else _number(fields, "lora_dropout")
    if dropout >= 1:
        raise fields.error("lora_dropout", "a number in [0, 1)")
    return PeftConfig(
        where=where,
        base_model=fields.text("base_model_name_or_path", ""),
        rank=fields.integer("r"),
        alpha=_number(fields, "lora_alpha"),
        dropout=dropout,
        rslora=fields.boolean("use_rslora", False),
        rank_pattern=_patterns(fields, "rank_pattern", int),
        alpha_pattern=_patterns(fields, "alpha_pattern", float),
        targets=_names(fields, "target_modules"),
        excluded=_names(fields, "exclude_modules") if fields.mapping.get("exclude_modules") else (),
        layers=_layers(fields),
    )


def _check_supported(fields: Fields) -> None:
    if fields.text("peft_type") != "LORA":
        raise fields.error("peft_type", "'LORA'")
    if fields.text("bias", "none") != "none":
        raise fields.error("bias", "'none' (trained biases are not supported)")
    init: object = fields.mapping.get("init_lora_weights")
    if not isinstance(init, str | bool | None) or init not in PLAIN_INITS:
        raise fields.error(
            "init_lora_weights",
            "true, false, 'gaussian', 'eva' or 'orthogonal' (others change the base's weights: convert when saving)",
        )
    for key, value in fields.mapping.items():
        if value and key not in READ and key not in HARMLESS:
            raise AdapterError(
                f"{fields.where}: {plain(key)} is {short(value)}; expected null, false or empty (this is not supported)"
            )


def _number(fields: Fields, key: str) -> float:
    value: object = fields.mapping.get(key)
    if not is_finite_number(value) or value < 0:
        raise fields.error(key, "a number >= 0")
    return float(value)


def _patterns(fields: Fields, key: str, kind: type[Number]) -> tuple[tuple[Pattern, Number], ...]:
    value: object = fields.mapping.get(key)
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise fields.error(key, "an object of names and numbers")
    patterns: list[tuple[Pattern, Number]] = []
    for text, number in cast("dict[str, object]", value).items():
        good = is_finite_number(number) and number >= 0
        if not good or (kind is int and (not is_integer(number) or number < 1)):
            expected = "an integer >= 1" if kind is int else "a number >= 0"
            raise AdapterError(f"{fields.where}: {key} {short(text)} is {short(number)}; expected {expected}")
        patterns.append((Pattern.parse(text, f"{fields.where}: {key}"), kind(cast("int | float", number))))
    return tuple(patterns)


def _names(fields: Fields, key: str) -> tuple[str, ...] | None:
    """A list of module names; None where the file has a regular expression or nothing."""
    value: object = fields.mapping.get(key)
    if value == "all-linear":
        return tuple(PROJECTIONS)
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in cast("list[object]", value)):
        raise fields.error(key, "a list of module names or a string")
    return tuple(cast("list[str]", value))


def _layers(fields: Fields) -> frozenset[int] | None:
    value: object = fields.mapping.get("layers_to_transform")
    items = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    layers = [item for item in items if is_integer(item) and item >= 0]
    if len(layers) != len(items):
        raise fields.error("layers_to_transform", "a layer's index or a list of them")
    return frozenset(layers) or None


@dataclass(frozen=True)
class Selection:
    """Targets in the terms of a LoRAConfig or of peft: names or paths, layers, and what differs from the default."""

    target_modules: tuple[str, ...]
    layers: tuple[int, ...] | None
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]


def describe(targets: Iterable[Target], rank: int, alpha: float, num_layers: int) -> Selection:
    """Say which modules are adapted, and with which ranks and alphas, so that peft and ``resolve_targets`` agree.

    A projection's name where it holds for all layers (or all chosen layers), else full paths.
    """
    targets = tuple(targets)
    names = sorted({target.projection for target in targets})
    layers = sorted({target.layer for target in targets})
    if len(targets) == len(names) * len(layers):
        modules = tuple(names)
        chosen = None if len(layers) == num_layers else tuple(layers)
    else:
        modules = tuple(sorted(module_path(target.layer, target.projection) for target in targets))
        chosen = None
    ranks = {(target.layer, target.projection): target.rank for target in targets}
    alphas = {(target.layer, target.projection): target.alpha for target in targets}
    return Selection(modules, chosen, _as_pattern(ranks, rank), _as_pattern(alphas, alpha))


def _as_pattern(values: Mapping[Module, Number], default: Number) -> dict[str, Number]:
    """The values that are not the default, by projection where all of its layers agree, else by full path."""
    pattern: dict[str, Number] = {}
    for projection in PROJECTIONS:
        own = {layer: value for (layer, name), value in values.items() if name == projection}
        if not any(value != default for value in own.values()):
            continue
        if len(set(own.values())) == 1:
            pattern[projection] = next(iter(own.values()))
        else:
            pattern |= {module_path(layer, projection): value for layer, value in own.items() if value != default}
    return pattern


def render_peft_config(
    selection: Selection, *, rank: int, alpha: float, dropout: float, rslora: bool, base_model: str
) -> bytes:
    """The text of an adapter_config.json."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model or None,
        "r": rank,
        "lora_alpha": _plain(alpha),
        "lora_dropout": dropout,
        "target_modules": list(selection.target_modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": rslora,
        "use_dora": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "layers_to_transform": None if selection.layers is None else list(selection.layers),
        "layers_pattern": None if selection.layers is None else "layers",
        "rank_pattern": dict(selection.rank_pattern),
        "alpha_pattern": {key: _plain(value) for key, value in selection.alpha_pattern.items()},
        "inference_mode": True,
        "peft_version": PEFT_VERSION,
    }
    return (json.dumps(config, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _plain(value: float) -> int | float:
    """Whole numbers without a fraction, as peft writes them."""
    return int(value) if float(value).is_integer() else float(value)
