"""Tiny models and adapters for tests, in memory and as PEFT directories."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tritune.lora import Adapter, LoRAConfig
from tritune.models.config import ModelConfig

Files = tuple[dict[str, Any], dict[str, np.ndarray]]
"""The config and the tensors of a PEFT directory."""


@dataclass(frozen=True)
class Base:
    """A model as far as an adapter needs it."""

    config: ModelConfig
    name: str = "org/tiny"


def tiny_base(layers: int = 3, hidden: int = 36, model_type: str = "llama") -> Base:
    """A base whose sizes all differ: hidden 36, FFN 48, queries 24, keys and values 8."""
    return Base(
        ModelConfig(
            model_type=model_type,
            vocab_size=50,
            hidden_size=hidden,
            intermediate_size=48,
            num_layers=layers,
            num_heads=3,
            num_kv_heads=1,
            head_dim=8,
            activation="silu",
            rms_norm_eps=1e-6,
            rope_theta=1e4,
            max_positions=64,
            tie_word_embeddings=False,
            sub_norms=False,
        )
    )


def random_adapter(base: Base, config: LoRAConfig | None = None, seed: int = 0) -> Adapter:
    """An adapter of which no matrix is zero and no two are equal."""
    adapter = Adapter.create(base, config or LoRAConfig(rank=4, alpha=8), seed)
    rng = np.random.default_rng(seed)
    for tensor in adapter.tensors().values():
        tensor[...] = rng.standard_normal(tensor.shape)
    return adapter


def read_directory(path: Path) -> Files:
    """The config and the tensors of a saved adapter, to change and write again."""
    return json.loads((path / "adapter_config.json").read_text()), load_file(path / "adapter_model.safetensors")


def write_directory(path: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    """A PEFT directory with exactly this inside."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, path / "adapter_model.safetensors")
    return path


def same(a: Adapter, b: Adapter) -> bool:
    """Whether two adapters compute the same: equal targets (ranks, scales) and equal tensors."""
    left, right = a.tensors(), b.tensors()
    return a.targets == b.targets and all(np.array_equal(left[name], right[name]) for name in left)
