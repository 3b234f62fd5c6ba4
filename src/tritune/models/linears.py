"""The seven linears of a block, and how they are grouped: projections that share their input are one product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritune.models.config import ModelConfig

PROJECTIONS: Mapping[str, str] = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
"""Name of each projection, and of the module that holds it in a checkpoint."""


def module_path(layer: int, projection: str) -> str:
    """The path of a projection inside a checkpoint, such as ``model.layers.0.self_attn.q_proj``."""
    return f"model.layers.{layer}.{PROJECTIONS[projection]}.{projection}"


@dataclass(frozen=True)
class LinearGroup:
    """Projections computed in one product, their rows stacked in this order."""

    name: str
    projections: tuple[str, ...]
    in_features: int
    parts: tuple[int, ...]  # rows of each projection

    @property
    def out_features(self) -> int:
        """Rows of the whole group."""
        return sum(self.parts)


def linear_groups(config: ModelConfig) -> tuple[LinearGroup, ...]:
    """The four groups of every layer."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return (
        LinearGroup("qkv", ("q_proj", "k_proj", "v_proj"), hidden, (q, kv, kv)),
        LinearGroup("o", ("o_proj",), q, (hidden,)),
        LinearGroup("gate_up", ("gate_proj", "up_proj"), hidden, (ffn, ffn)),
        LinearGroup("down", ("down_proj",), ffn, (hidden,)),
    )


GROUP_OF: Mapping[str, str] = {
    "q_proj": "qkv",
    "k_proj": "qkv",
    "v_proj": "qkv",
    "o_proj": "o",
    "gate_proj": "gate_up",
    "up_proj": "gate_up",
    "down_proj": "down",
}
"""The group that each projection belongs to."""
