"""From the tensors of a file to an adapter, whatever the format.

Every tensor must have its place in the model, only one may, no half may be missing, and shapes and values must be
usable: an adapter never loads "successfully" and does nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from tritune.errors import AdapterError
from tritune.lora.adapter import Adapter, tensor_name
from tritune.lora.config import LoRAConfig, Target, lora_scale
from tritune.lora.layout import make_layout
from tritune.lora.patterns import plain
from tritune.lora.peft_config import Module, describe
from tritune.lora.types import Floats
from tritune.models.config import ModelConfig
from tritune.models.linears import GROUP_OF, PROJECTIONS, linear_groups, module_path

Place = tuple[int, str, str]
"""(layer, projection, "A" or "B")."""

LAYER = r"(0|[1-9]\d{0,8})"
"""A layer's number in a tensor's name, for the formats' regular expressions."""

OTHER_LETTER = str.maketrans("ABab", "BAba")

MAX_PADDED = 1 << 26
MAX_PADDING = 32
"""A file whose padded size is more than this many values and this many times its own is refused."""

# What a tensor of another kind says about the adapter.
OTHER_KINDS = {
    "lora_embedding_": "LoRA of an embedding is not supported",
    "lora_magnitude_vector": "DoRA is not supported",
    ".bias": "biases are not supported",
    "modules_to_save": "modules saved as a whole are not supported",
    "lm_head": "LoRA of the output head is not supported",
    "embed_tokens": "changes of the embedding are not supported",
    "token_embd": "changes of the embedding are not supported",
    "norm": "changes of a norm are not supported",
}


@dataclass(frozen=True)
class AdapterTensors:
    """The tensors of a file by the file's own names; nothing is read before shapes and places were checked."""

    path: Path
    place: Callable[[str], Place | None]  # of a name; None for one that is no adapter tensor
    shapes: Mapping[str, tuple[int, ...]]  # as the file has them
    read: Callable[[str], Floats]  # as the file has them
    example: str  # a name that the file could have
    transposed: bool = False  # A is [in, rank] and B [rank, out]

    def values(self, name: str) -> Floats:
        """A [rank, in] or B [out, rank]. Raises AdapterError when a value is not finite."""
        values = self.read(name)
        if not np.isfinite(values).all():
            raise AdapterError(f"{self.path}: tensor {name} holds a value that is not finite")
        return values.T if self.transposed else values


class Settings(Protocol):
    """What a file says beside its tensors. ``where`` names the file that says it."""

    @property
    def where(self) -> str: ...
    @property
    def base_model(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def dropout(self) -> float: ...
    @property
    def rslora(self) -> bool: ...
    def rank_of(self, path: str) -> int:
        """The rank of a module."""
        ...

    def alpha_of(self, path: str) -> float:
        """The alpha of a module; its scale is alpha / rank, or alpha / √rank."""
        ...


@dataclass(frozen=True)
class PlainSettings:
    """Settings with numbers of their own for some modules, by path."""

    where: str
    rank: int
    alpha: float
    base_model: str = ""
    dropout: float = 0.0
    rslora: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict[str, int])
    alphas: Mapping[str, float] = field(default_factory=dict[str, float])

    def rank_of(self, path: str) -> int:
        """The rank of a module."""
        return self.ranks.get(path, self.rank)

    def alpha_of(self, path: str) -> float:
        """The alpha of a module."""
        return self.alphas.get(path, self.alpha)


@dataclass
class Pair:
    """The names of the two tensors of one module, as the file has them."""

    names: dict[str, str] = field(default_factory=dict[str, str])  # by "A" and "B"


def place_of(layer: str, holder: str, projection: str, matrix: str) -> Place | None:
    """The place that the parts of a tensor's name stand for."""
    if PROJECTIONS.get(projection) != holder:
        return None
    return int(layer), projection, matrix.upper()


def pairs_of(tensors: AdapterTensors, num_layers: int | None = None) -> dict[Module, Pair]:
    """The tensors by module. Raises AdapterError for one without a place (in a model of ``num_layers``), two for one
    place, or half a pair."""
    pairs: dict[Module, Pair] = {}
    lost: list[str] = []
    for name in tensors.shapes:
        place = tensors.place(name)
        if place is None or (num_layers is not None and place[0] >= num_layers):
            lost.append(name)
            continue
        pair = pairs.setdefault(place[:2], Pair())
        if place[2] in pair.names:
            raise AdapterError(f"{tensors.path}: tensors {pair.names[place[2]]} and {name} are for the same matrix")
        pair.names[place[2]] = name
    if lost:
        raise AdapterError(_lost_message(tensors.path, lost, num_layers))
    if not pairs:
        raise AdapterError(f"{tensors.path}: no tensors; expected names such as {tensors.example}")
    for pair in pairs.values():
        if len(pair.names) == 1:
            (name,) = pair.names.values()
            letter = name[name.index("lora_") + len("lora_")]
            raise AdapterError(
                f"{tensors.path}: tensor {name} lacks its other half, lora_{letter.translate(OTHER_LETTER)}"
            )
    return dict(sorted(pairs.items(), key=lambda item: (item[0][0], list(PROJECTIONS).index(item[0][1]))))


def _lost_message(path: Path, lost: list[str], num_layers: int | None) -> str:
    first = ", ".join(plain(name) for name in lost[:3])
    what = f"tensor {first}" if len(lost) == 1 else f"{len(lost)} tensors (first: {first})"
    why = next((text for part, text in OTHER_KINDS.items() if part in lost[0]), None)
    layers = "layers" if num_layers is None else f"layers 0 … {num_layers - 1}"
    why = why or f"this base has {layers} of {', '.join(PROJECTIONS)}"
    return f"{path}: no place in the model for {what}: {why}"


def assemble(tensors: AdapterTensors, settings: Settings, model: ModelConfig, base_name: str) -> Adapter:
    """The adapter. Raises AdapterError for shapes that do not fit the model or the settings, and values not finite.

    Warns when the file names a base other than ``base_name``; a name alone says little.
    """
    pairs = pairs_of(tensors, model.num_layers)
    targets = tuple(_target(tensors, module, pair, settings, model) for module, pair in pairs.items())
    _check_padding(tensors, targets, model)
    adapter = Adapter(lora_config(settings, targets, model), model, targets, settings.base_model or base_name)
    places = adapter.tensors()
    for (layer, projection), pair in pairs.items():
        for matrix, name in pair.names.items():
            places[tensor_name(layer, projection, matrix)][...] = tensors.values(name)
    _warn_of_other_base(settings, base_name)
    return adapter


def _check_padding(tensors: AdapterTensors, targets: tuple[Target, ...], model: ModelConfig) -> None:
    """Refuse a file that is small and would be large in memory, where all ranks are padded to the largest."""
    rank = max(target.rank for target in targets)
    padded = make_layout(model, {(target.layer, GROUP_OF[target.projection]) for target in targets}, rank).size
    held = sum(math.prod(shape) for shape in tensors.shapes.values())
    if padded > MAX_PADDED and padded > MAX_PADDING * held:
        least = min(target.rank for target in targets)
        raise AdapterError(
            f"{tensors.path}: ranks from {least} to {rank} in one adapter, which would take {padded / 2**28:.1f} GiB"
        )


def _target(tensors: AdapterTensors, module: Module, pair: Pair, settings: Settings, model: ModelConfig) -> Target:
    """One module's target, its tensors' shapes checked against model and settings."""
    path = module_path(*module)
    rank, alpha = settings.rank_of(path), settings.alpha_of(path)
    outputs, inputs = _sizes(model, module[1])
    for matrix, (size, label) in (("A", inputs), ("B", outputs)):
        name = pair.names[matrix]
        found = tensors.shapes[name]
        expected = [rank, size] if (matrix == "A") != tensors.transposed else [size, rank]
        message = f"{tensors.path}: tensor {name} has shape {list(found)}; expected {expected}"
        if len(found) != 2:
            raise AdapterError(message)
        axis = 1 if (matrix == "A") != tensors.transposed else 0
        if found[axis] != size:
            raise AdapterError(f"{message}: made for {label} {found[axis]}, this base has {size}")
        if found[1 - axis] != rank:
            raise AdapterError(f"{message}: {settings.where} gives it rank {rank}")
    return Target(*module, rank, alpha, lora_scale(alpha, rank, settings.rslora))


def _sizes(model: ModelConfig, projection: str) -> tuple[tuple[int, str], tuple[int, str]]:
    """(outputs, inputs) of a projection, each with the name of the size that it is."""
    group = next(group for group in linear_groups(model) if group.name == GROUP_OF[projection])
    hidden, ffn, queries = "hidden", "intermediate size", "heads × head size"
    labels = {
        "q_proj": (queries, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (ffn, hidden),
        "up_proj": (ffn, hidden),
        "down_proj": (hidden, ffn),
    }
    out_label, in_label = labels.get(projection, ("key/value heads × head size", hidden))
    return (group.parts[group.projections.index(projection)], out_label), (group.in_features, in_label)


def lora_config(settings: Settings, targets: tuple[Target, ...], model: ModelConfig) -> LoRAConfig:
    """Settings that would make the same targets again."""
    selection = describe(targets, settings.rank, settings.alpha, model.num_layers)
    return LoRAConfig(
        rank=settings.rank,
        alpha=settings.alpha,
        target_modules=selection.target_modules,
        dropout=settings.dropout,
        rslora=settings.rslora,
        rank_pattern=selection.rank_pattern,
        alpha_pattern=selection.alpha_pattern,
        layers=selection.layers,
    )


def _warn_of_other_base(settings: Settings, base_name: str) -> None:
    def last(name: str) -> str:
        return name.replace("\\", "/").rstrip("/").rpartition("/")[2]

    if settings.base_model and base_name and last(settings.base_model) != last(base_name):
        warnings.warn(f"{settings.where}: made for {plain(settings.base_model)}, loaded on {base_name}", stacklevel=7)


def finite_tensors(adapter: Adapter, path: Path) -> dict[str, Floats]:
    """The tensors to save, by PEFT's names, contiguous. Raises AdapterError for a value that is not finite."""
    tensors: dict[str, Floats] = {}
    for name, values in adapter.tensors().items():
        if not np.isfinite(values).all():
            raise AdapterError(f"{path}: not saved: tensor {name} holds a value that is not finite")
        tensors[name] = np.ascontiguousarray(values, np.float32)
    return tensors


def scaled(b: Floats, factor: float, path: Path) -> Floats:
    """A copy of B times a factor, for a format whose own scale cannot say it. Raises AdapterError if that overflows."""
    with np.errstate(over="ignore"):
        product = b * np.float32(factor)
    if not np.isfinite(product).all():
        raise AdapterError(f"{path}: not saved: a scale of {factor:g} makes values that float32 cannot hold")
    return product
