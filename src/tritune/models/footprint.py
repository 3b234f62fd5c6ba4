"""How much of a device's memory a model needs, told by its files before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from tritune.models.config import ModelConfig
from tritune.models.weights import ModelSource, norm_sizes, projection_shapes

_ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1}


@dataclass(frozen=True)
class Footprint:
    """Bytes. The scratch of a forward is not counted; a few MiB in decoding."""

    ternary: int  # 2 bits a weight
    tables: int  # the embedding and a head of its own
    floats: int  # norms and rotary table
    cache: int  # keys and values of one context

    @property
    def total(self) -> int:
        """All together."""
        return self.ternary + self.tables + self.floats + self.cache

    def __str__(self) -> str:
        """In one line, for people."""
        return (
            f"{self.total / 1e9:.2f} GB: {(self.ternary + self.floats) / 1e9:.2f} of weights, {self.tables / 1e9:.2f} "
            f"of embedding and head, {self.cache / 1e9:.2f} of keys and values"
        )


def footprint(
    source: ModelSource, context: int, kv_dtype: Literal["f16", "f32"] = "f16", *, int8_head: bool = False
) -> Footprint:
    """What a model needs with a context of ``context`` positions."""
    config = source.config
    table = config.vocab_size * config.hidden_size
    embedding, head = source.embedding(), source.head()
    tables = table * _ITEM_BYTES[embedding.dtype]
    if int8_head or head is not None:
        tables += table * (1 if int8_head or head is None else _ITEM_BYTES[head.dtype])
    return Footprint(
        ternary=_ternary_bytes(config),
        tables=tables,
        floats=_float_bytes(config),
        cache=cache_bytes(config, context, kv_dtype),
    )


def weight_bytes(config: ModelConfig) -> int:
    """Bytes of all weights but the embedding and the head, with a scale for each row of a matrix."""
    rows = config.num_layers * sum(rows for rows, _ in projection_shapes(config).values())
    return _ternary_bytes(config) + 4 * rows + _float_bytes(config)


def _ternary_bytes(config: ModelConfig) -> int:
    return config.num_layers * sum(map(prod, projection_shapes(config).values())) // 4


def _float_bytes(config: ModelConfig) -> int:
    return 4 * (config.num_layers * sum(norm_sizes(config).values()) + config.max_positions * config.head_dim)


def cache_bytes(config: ModelConfig, context: int, kv_dtype: Literal["f16", "f32"] = "f16") -> int:
    """Bytes of the keys and values of ``context`` positions in all layers."""
    return config.num_layers * 2 * config.kv_size * context * _ITEM_BYTES[kv_dtype]
