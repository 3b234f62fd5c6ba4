"""Tiny random models with a ChatML tokenizer, opened on a backend that the test owns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tiny_models import make_hf
from tiny_tokenizer import write_directory
from tritune import Adapter, LoRAConfig, Model
from tritune.backends.base import Backend
from tritune.models.weights import open_model

VOCABULARY = 420  # of tiny_tokenizer's ChatML vocabulary
END = 2  # <|im_end|>


def make_chat_model(path: Path, generation: dict[str, Any] | None = None, **sizes: Any) -> Path:
    """Write a model of two layers whose vocabulary is the tokenizer's; ``generation``: its generation_config.json."""
    make_hf(path, **({"vocab": VOCABULARY, "hidden": 32, "ffn": 48, "heads": 4, "kv_heads": 2} | sizes))
    write_directory(path, kind="chatml")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, 0]} | (generation or {})))
    return path


def open_chat_model(path: Path, backend: Backend, **options: Any) -> Model:
    """The model on a backend that stays open for others."""
    return Model(open_model(path), backend, **options)


def strong_adapter(model: Model, seed: int = 0, size: float = 0.05, **config: Any) -> Adapter:
    """An adapter that changes what the model says: no matrix of it is zero."""
    adapter = Adapter.create(model, LoRAConfig(**({"rank": 4, "alpha": 8.0} | config)), seed)
    rng = np.random.default_rng(seed)
    for name, tensor in adapter.tensors().items():
        if "lora_B" in name:
            tensor[...] = size * rng.standard_normal(tensor.shape)
    return adapter


def chat_rows(count: int, answer: str = "I am fine, thank you.") -> list[dict[str, Any]]:
    """Rows of one question and one answer, all different."""
    return [
        {"messages": [{"role": "user", "content": f"hello {n}"}, {"role": "assistant", "content": f"{answer} {n}"}]}
        for n in range(count)
    ]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random token ids, none of them special."""
    return np.random.default_rng([9, seed]).integers(3, VOCABULARY, length).tolist()


def bytes_in_use(webgpu: Any) -> int:
    """Bytes of device memory that live buffers take: finer than ``stats``, which counts whole arenas."""
    webgpu.memory._give_back_returned()
    return sum(arena.size - sum(size for _, size in arena.free) for arena in webgpu.memory._arenas)
