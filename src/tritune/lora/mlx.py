"""mlx-lm's adapters: adapters.safetensors with lora_a [in, rank] and lora_b [rank, out], and adapter_config.json.

``scale`` in lora_parameters is the multiplier itself; ``num_layers`` counts from the last layer, all of them where it
is not positive (mlx_lm/tuner/utils.py, load_adapters and linear_to_lora_layers). One rank, one scale, and the same
modules (``keys``) in each of these layers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import numpy as np
from safetensors.numpy import save as to_safetensors

from tritune.atomic import new_directory, write_atomic
from tritune.errors import AdapterError, InputError
from tritune.formats.fields import Fields, read_json_object, short
from tritune.formats.safetensors import SafetensorsFile
from tritune.lora.adapter import Adapter, tensor_name
from tritune.lora.peft_files import CONFIG_NAME
from tritune.lora.safetensors import adapter_tensors
from tritune.lora.tensors import (
    LAYER,
    Module,
    Place,
    PlainSettings,
    assemble,
    finite_tensors,
    pairs_of,
    place_of,
    scaled,
)
from tritune.lora.types import Floats
from tritune.models.config import ModelConfig
from tritune.models.linears import PROJECTIONS, module_path

WEIGHTS_NAME = "adapters.safetensors"
NAME = re.compile(rf"model\.layers\.{LAYER}\.(self_attn|mlp)\.(\w+)\.lora_([ab])")


class MlxFile:
    """An opened directory of mlx-lm."""

    def __init__(self, path: Path) -> None:
        config_file = path / CONFIG_NAME
        fields = Fields(read_json_object(config_file), str(config_file))
        if fields.text("fine_tune_type", "lora") != "lora":
            raise fields.error("fine_tune_type", "'lora'")
        parameters = fields.section("lora_parameters")
        if parameters is None:
            raise fields.error("lora_parameters", "an object with rank and scale")
        if "alpha" in parameters:
            raise AdapterError(
                f"{config_file}: lora_parameters.alpha is {short(parameters.mapping['alpha'])}; expected none "
                "(releases of mlx-lm multiply by scale or by scale × alpha / rank: leave it out, write that as scale)"
            )
        rank, scale = parameters.integer("rank"), parameters.number("scale")
        dropout = parameters.number("dropout", 0.0)
        if dropout >= 1:
            raise parameters.error("dropout", "a number in [0, 1)")
        self._fields = fields
        self._keys = _keys(parameters)
        self._settings = PlainSettings(str(config_file), rank, scale * rank, fields.text("model", ""), dropout)
        file = SafetensorsFile(path / WEIGHTS_NAME)
        self.tensors = adapter_tensors(file, _place, _name(0, "q_proj", "a"), transposed=True)

    def load(self, model: ModelConfig, base_name: str) -> Adapter:
        """The adapter. Raises AdapterError."""
        adapter = assemble(self.tensors, self._settings, model, base_name)
        if model.model_type != "unknown":
            self._check_promises(pairs_of(self.tensors, model.num_layers), model)
        return adapter

    def _check_promises(self, found: Iterable[Module], model: ModelConfig) -> None:
        if self._keys is None:
            return
        count: object = self._fields.mapping.get("num_layers")
        if not isinstance(count, int) or isinstance(count, bool):
            raise self._fields.error("num_layers", "an integer")
        first = max(0, model.num_layers - count) if count > 0 else 0
        paths = {module_path(*module) for module in found}
        for layer in range(first, model.num_layers):
            for key in self._keys:
                if f"model.layers.{layer}.{key}" not in paths:
                    raise AdapterError(
                        f"{self._fields.where}: num_layers {count} and keys promise model.layers.{layer}.{key}, which "
                        f"has no tensors"
                    )


def _keys(parameters: Fields) -> tuple[str, ...] | None:
    keys: object = parameters.mapping.get("keys")
    if keys is None:
        return None
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in cast("list[object]", keys)):
        raise parameters.error("keys", "a list of module names")
    return tuple(cast("list[str]", keys))


def _place(name: str) -> Place | None:
    match = NAME.fullmatch(name)
    return None if match is None else place_of(*match.groups())


def _name(layer: int, projection: str, matrix: str) -> str:
    return f"{module_path(layer, projection)}.lora_{matrix}"


def save_mlx(adapter: Adapter, path: Path) -> None:
    """Write a new directory, float32, whole or not at all.

    Raises AdapterError for what the format cannot hold: several ranks, other modules in some layers, layers that are
    not the model's last ones.
    """
    tensors = finite_tensors(adapter, path)
    rank, layers = _one_rank(adapter, path), _last_layers(adapter, path)
    scales = {target.scale for target in adapter.targets}
    scale = scales.pop() if len(scales) == 1 else 1.0
    named: dict[str, Floats] = {}
    for target in adapter.targets:
        a, b = (tensors[tensor_name(target.layer, target.projection, matrix)] for matrix in "AB")
        if target.scale != scale:
            b = scaled(b, target.scale / scale, path)
        named[_name(target.layer, target.projection, "a")] = np.ascontiguousarray(a.T)
        named[_name(target.layer, target.projection, "b")] = np.ascontiguousarray(b.T)
    projections = [name for name in PROJECTIONS if any(target.projection == name for target in adapter.targets)]
    config = {
        "fine_tune_type": "lora",
        "model": adapter.base_model or None,
        "num_layers": layers,
        "lora_parameters": {
            "rank": rank,
            "dropout": adapter.config.dropout,
            "scale": scale,
            "keys": [f"{PROJECTIONS[name]}.{name}" for name in projections],
        },
    }
    try:
        with new_directory(path) as folder:
            write_atomic(folder / WEIGHTS_NAME, to_safetensors(named, metadata={"format": "mlx"}))
            write_atomic(folder / CONFIG_NAME, (json.dumps(config, indent=2, allow_nan=False) + "\n").encode())
    except InputError as error:
        raise AdapterError(str(error)) from None


def _one_rank(adapter: Adapter, path: Path) -> int:
    ranks = sorted({target.rank for target in adapter.targets})
    if len(ranks) > 1:
        found = ", ".join(map(str, ranks))
        raise AdapterError(f"{path}: not saved: mlx-lm's format has one rank for all modules, the adapter has {found}")
    return ranks[0]


def _last_layers(adapter: Adapter, path: Path) -> int:
    """How many layers, counted from the last, are adapted."""
    modules = {(target.layer, target.projection) for target in adapter.targets}
    count = adapter.model_config.num_layers
    first = min(layer for layer, _ in modules)
    if modules != {(layer, name) for layer in range(first, count) for name in {name for _, name in modules}}:
        raise AdapterError(
            f"{path}: not saved: mlx-lm's format adapts the same modules in each of a model's last layers; this "
            "adapter has other modules in some of them"
        )
    return count - first
