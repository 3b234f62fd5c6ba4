"""PEFT directories (adapter_config.json and adapter_model.safetensors): the native form of an adapter.

Reading is strict: every tensor must have its place in the model and every module that the config promises its tensors,
so an adapter never loads "successfully" and does nothing. Writing is atomic.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as to_safetensors

from tritune.atomic import reason
from tritune.errors import AdapterError, ModelFileError
from tritune.formats.fields import read_json_object
from tritune.formats.safetensors import SafetensorsFile
from tritune.lora.adapter import Adapter, tensor_name
from tritune.lora.config import LoRAConfig, Target, lora_scale
from tritune.lora.patterns import plain
from tritune.lora.peft_config import Module, PeftConfig, describe, parse_peft_config, render_peft_config
from tritune.lora.peft_files import CONFIG_NAME, current_weights, write_pair
from tritune.lora.types import Floats
from tritune.models.config import ModelConfig
from tritune.models.linears import GROUP_OF, PROJECTIONS, linear_groups, module_path

FLOAT_TYPES = ("F32", "F16", "BF16")
PREFIX = "base_model.model."

# What a tensor of another kind says about the adapter.
OTHER_KINDS = {
    "lora_embedding_": "LoRA of an embedding is not supported",
    "lora_magnitude_vector": "DoRA is not supported",
    ".bias": "biases are not supported",
    "modules_to_save": "modules saved as a whole are not supported",
    "lm_head": "LoRA of the output head is not supported",
    "embed_tokens": "changes of the embedding are not supported",
}


@dataclass
class Pair:
    """The names of the two tensors of one module, as the file has them."""

    names: dict[str, str] = field(default_factory=dict[str, str])  # by "A" and "B"


def load_adapter(path: Path, model: ModelConfig, base_name: str) -> Adapter:
    """Read an adapter made for ``model``. Raises AdapterError, one line that names the file and the field or tensor.

    Warns when the adapter names a base other than ``base_name``; a name alone says little.
    """
    try:
        return _load(path, model, base_name)
    except ModelFileError as error:
        raise AdapterError(str(error)) from None
    except OSError as error:
        raise AdapterError(f"{path}: cannot be read: {reason(error)}") from None


def _load(path: Path, model: ModelConfig, base_name: str) -> Adapter:
    config_file = path / CONFIG_NAME
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise AdapterError(f"{path}: expected an adapter's directory with {CONFIG_NAME}, found {found}")
    config = parse_peft_config(read_json_object(config_file), str(config_file))
    file = SafetensorsFile(current_weights(path))
    pairs = _pairs(file, model)
    targets = tuple(_target(file, module, pair, config, model) for module, pair in sorted(pairs.items(), key=_order))
    config.check_promises(pairs, model)
    adapter = Adapter(_lora_config(config, targets, model), model, targets, config.base_model or base_name)
    tensors = adapter.tensors()
    for (layer, projection), pair in pairs.items():
        for matrix, name in pair.names.items():
            tensors[tensor_name(layer, projection, matrix)][...] = _values(file, name)
    _warn_of_other_base(config, base_name)
    return adapter


def _order(item: tuple[Module, Pair]) -> tuple[int, int]:
    (layer, projection), _ = item
    return layer, list(PROJECTIONS).index(projection)


def _pairs(file: SafetensorsFile, model: ModelConfig) -> dict[Module, Pair]:
    """The file's tensors by module. Every tensor must have a place, only one may, and no half may be missing."""
    places = {
        f"{module_path(layer, projection)}.lora_{matrix}": (layer, projection, matrix)
        for layer in range(model.num_layers)
        for projection in PROJECTIONS
        for matrix in "AB"
    }
    pairs: dict[Module, Pair] = {}
    lost: list[str] = []
    for name in file.infos:
        place = places.get(name.removeprefix(PREFIX).removesuffix(".weight").removesuffix(".default"))
        if place is None or not name.endswith(".weight"):
            lost.append(name)
            continue
        pair = pairs.setdefault(place[:2], Pair())
        if place[2] in pair.names:
            raise AdapterError(f"{file.path}: tensors {pair.names[place[2]]} and {name} are for the same matrix")
        pair.names[place[2]] = name
    if lost:
        raise AdapterError(_lost_message(file.path, lost, model))
    if not pairs:
        raise AdapterError(f"{file.path}: no tensors; expected names such as {tensor_name(0, 'q_proj', 'A')}")
    for pair in pairs.values():
        if len(pair.names) == 1:
            matrix, name = next(iter(pair.names.items()))
            raise AdapterError(f"{file.path}: tensor {name} lacks its other half, lora_{'B' if matrix == 'A' else 'A'}")
    return pairs


def _lost_message(path: Path, lost: list[str], model: ModelConfig) -> str:
    first = ", ".join(plain(name) for name in lost[:3])
    what = f"tensor {first}" if len(lost) == 1 else f"{len(lost)} tensors (first: {first})"
    why = next((text for part, text in OTHER_KINDS.items() if part in lost[0]), None)
    why = why or f"this base has layers 0 … {model.num_layers - 1} of {', '.join(PROJECTIONS)}"
    return f"{path}: no place in the model for {what}: {why}"


def _target(file: SafetensorsFile, module: Module, pair: Pair, config: PeftConfig, model: ModelConfig) -> Target:
    """One module's target, its tensors' dtypes and shapes checked against model and config."""
    path = module_path(*module)
    rank, alpha = config.rank_of(path), config.alpha_of(path)
    outputs, inputs = _sizes(model, module[1])
    for matrix, axis, wanted in (("A", 1, inputs), ("B", 0, outputs)):
        name = pair.names[matrix]
        info = file.infos[name]
        if info.dtype not in FLOAT_TYPES:
            raise AdapterError(f"{file.path}: tensor {name} has dtype {info.dtype}; expected {', '.join(FLOAT_TYPES)}")
        size, label = wanted
        shape = (rank, size) if matrix == "A" else (size, rank)
        message = f"{file.path}: tensor {name} has shape {list(info.shape)}; expected {list(shape)}"
        if len(info.shape) != 2:
            raise AdapterError(message)
        if info.shape[axis] != size:
            raise AdapterError(f"{message}: made for {label} {info.shape[axis]}, this base has {size}")
        if info.shape[1 - axis] != rank:
            raise AdapterError(f"{message}: {config.where} gives it rank {rank}")
    return Target(*module, rank, alpha, lora_scale(alpha, rank, config.rslora))


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


def _values(file: SafetensorsFile, name: str) -> Floats:
    raw: NDArray[Any] = file.read(name)
    # bfloat16 is the upper half of a float32.
    bf16 = file.infos[name].dtype == "BF16"
    values: Floats = (raw.astype(np.uint32) << 16).view(np.float32) if bf16 else raw.astype(np.float32)
    if not np.isfinite(values).all():
        raise AdapterError(f"{file.path}: tensor {name} holds a value that is not finite")
    return values


def _lora_config(config: PeftConfig, targets: tuple[Target, ...], model: ModelConfig) -> LoRAConfig:
    """Settings that would make the same targets again."""
    selection = describe(targets, config.rank, config.alpha, model.num_layers)
    return LoRAConfig(
        rank=config.rank,
        alpha=config.alpha,
        target_modules=selection.target_modules,
        dropout=config.dropout,
        rslora=config.rslora,
        rank_pattern=selection.rank_pattern,
        alpha_pattern=selection.alpha_pattern,
        layers=selection.layers,
    )


def _warn_of_other_base(config: PeftConfig, base_name: str) -> None:
    def last(name: str) -> str:
        return name.replace("\\", "/").rstrip("/").rpartition("/")[2]

    if config.base_model and base_name and last(config.base_model) != last(base_name):
        warnings.warn(f"{config.where}: made for {plain(config.base_model)}, loaded on {base_name}", stacklevel=5)


def save_adapter(adapter: Adapter, path: Path) -> None:
    """Write an adapter as float32, whole or not at all.

    Raises AdapterError for a value that is not finite or a place that cannot be written; what was there then stays.
    """
    tensors: dict[str, Floats] = {}
    for name, values in adapter.tensors().items():
        if not np.isfinite(values).all():
            raise AdapterError(f"{path}: not saved: tensor {name} holds a value that is not finite")
        tensors[name] = np.ascontiguousarray(values, np.float32)
    config = adapter.config
    selection = describe(adapter.targets, config.rank, config.alpha, adapter.model_config.num_layers)
    text = render_peft_config(
        selection,
        rank=config.rank,
        alpha=config.alpha,
        dropout=config.dropout,
        rslora=config.rslora,
        base_model=adapter.base_model,
    )
    write_pair(path, to_safetensors(tensors, metadata={"format": "pt"}), text)
