"""PEFT directories (adapter_config.json and adapter_model.safetensors): the native form of an adapter.

Reading is strict (lora/tensors.py), and every module that the config promises must have its tensors. Writing is atomic.
"""

from __future__ import annotations

import re
from pathlib import Path

from safetensors.numpy import save as to_safetensors

from tritune.formats.fields import read_json_object
from tritune.formats.safetensors import SafetensorsFile
from tritune.lora.adapter import Adapter, tensor_name
from tritune.lora.peft_config import PeftConfig, describe, parse_peft_config, render_peft_config
from tritune.lora.peft_files import CONFIG_NAME, current_weights, write_pair
from tritune.lora.safetensors import adapter_tensors
from tritune.lora.tensors import LAYER, AdapterTensors, Place, assemble, finite_tensors, pairs_of, place_of
from tritune.models.config import ModelConfig

NAME = re.compile(
    rf"(?:base_model\.model\.)?model\.layers\.{LAYER}\.(self_attn|mlp)\.(\w+)\.lora_([AB])(?:\.default)?\.weight"
)


class PeftFile:
    """An opened PEFT directory."""

    def __init__(self, path: Path) -> None:
        config_file = path / CONFIG_NAME
        self.config: PeftConfig = parse_peft_config(read_json_object(config_file), str(config_file))
        self.weights = current_weights(path)
        file = SafetensorsFile(self.weights)
        self.tensors: AdapterTensors = adapter_tensors(file, _place, tensor_name(0, "q_proj", "A"))

    def load(self, model: ModelConfig, base_name: str) -> Adapter:
        """The adapter. Raises AdapterError."""
        adapter = assemble(self.tensors, self.config, model, base_name)
        self.config.check_promises(pairs_of(self.tensors, model.num_layers), model)
        return adapter


def _place(name: str) -> Place | None:
    match = NAME.fullmatch(name)
    return None if match is None else place_of(*match.groups())


def save_peft(adapter: Adapter, path: Path) -> None:
    """Write an adapter as float32, whole or not at all.

    Raises AdapterError for a value that is not finite or a place that cannot be written; what was there then stays.
    """
    tensors = finite_tensors(adapter, path)
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
