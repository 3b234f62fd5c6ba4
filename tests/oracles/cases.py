"""Models, adapters and masks on which exactness is shown: each line another corner of the format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tritune.lora import LoRAConfig


@dataclass(frozen=True)
class Case:
    """A model (arguments of tiny_models.make_hf), an adapter for it, and the first layer that is trained."""

    model: dict[str, Any]
    lora: LoRAConfig = field(default_factory=lambda: LoRAConfig(rank=4, alpha=8))
    start_layer: int = 0
    length: int = 13


PATTERNS: dict[str, Any] = {
    "rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 7},
    "alpha_pattern": {"v_proj": 5, "gate_proj": 1},
}

CASES = {
    "bitnet relu2, rank and alpha patterns": Case({}, LoRAConfig(rank=4, alpha=8, **PATTERNS)),
    "bitnet relu2 bitlinear, hidden 28": Case(
        {"linear_class": "bitlinear", "hidden": 28, "heads": 7, "kv_heads": 7, "ffn": 52, "vocab": 131},
        LoRAConfig(rank=3, alpha=5),
    ),
    "bitnet silu, hidden 20, rslora": Case(
        {"act": "silu", "hidden": 20, "heads": 5, "kv_heads": 5, "ffn": 52, "vocab": 97, "scale_dtype": "BF16"},
        LoRAConfig(rank=8, alpha=4, rslora=True),
    ),
    "bitnet silu bitlinear, rslora with patterns": Case(
        {"act": "silu", "linear_class": "bitlinear", "hidden": 44, "heads": 11, "kv_heads": 11, "ffn": 20},
        LoRAConfig(rank=4, alpha=8, rslora=True, **PATTERNS),
    ),
    "bitnet, 3 layers, trained from the second on": Case(
        {"layers": 3, "hidden": 36, "heads": 3, "kv_heads": 1, "ffn": 52}, start_layer=1
    ),
    "bitnet, q and v only": Case(
        {"hidden": 32, "tie": False}, LoRAConfig(rank=4, alpha=8, target_modules=["q_proj", "v_proj"])),
    "bitnet, down only, rank 1": Case({"hidden": 32}, LoRAConfig(rank=1, alpha=3, target_modules=["down_proj"])),
    "bitnet, k of the second layer only": Case(
        {"hidden": 32}, LoRAConfig(rank=4, alpha=8, target_modules=["k_proj"], layers=(1,))
    ),
    "bitnet master weights": Case({"linear_class": None, "hidden": 32, "dtype": "F32"}),
    "llama, head_dim not hidden / heads": Case(
        {"model_type": "llama", "hidden": 44, "heads": 4, "kv_heads": 1, "head_dim": 20, "ffn": 52, "tie": False}
    ),
    "llama bitlinear, patterns, one row more than a bucket": Case(
        {"model_type": "llama", "linear_class": "bitlinear", "hidden": 20, "heads": 4, "head_dim": 8, "ffn": 52},
        LoRAConfig(rank=4, alpha=8, **PATTERNS),
        length=33,
    ),
}  # fmt: skip
