"""A model of random weights in memory, of any shape: for benchmarks, which need no tokenizer and no sense."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tritune.models.config import GenerationDefaults, ModelConfig
from tritune.models.weights import FloatTable, LayerWeights, ModelSource, TernaryMatrix, projection_shapes

SHAPE_2B4T = ModelConfig(
    model_type="bitnet",
    vocab_size=128256,
    hidden_size=2560,
    intermediate_size=6912,
    num_layers=30,
    num_heads=20,
    num_kv_heads=5,
    head_dim=128,
    activation="relu2",
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    max_positions=4096,
    tie_word_embeddings=True,
    sub_norms=True,
    name="random weights of the 2B-4T shape",
)

SHIFT = 4099
"""Layer i's codes begin i times this far into one pool of random codes: a prime, so that no two matrices are equal."""


TABLE_SHIFT = 65521
"""The same for the embedding, of which a pool of normal numbers is laid down again and again."""


def smaller(config: ModelConfig, layers: int | None = None, scale: int = 1) -> ModelConfig:
    """A model of fewer layers, its widths divided by ``scale``: for a quick look."""
    hidden, heads = config.head_dim * max(1, config.num_heads // scale), max(1, config.num_heads // scale)
    return replace(
        config,
        num_layers=config.num_layers if layers is None else layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=max(1, heads * config.num_kv_heads // config.num_heads),
        intermediate_size=-(-config.intermediate_size // (64 * scale)) * 64,
        vocab_size=-(-config.vocab_size // (64 * scale)) * 64,
    )


class RandomSource(ModelSource):
    """Ternary codes, norm gains near 1, and a bf16 embedding of standard deviation 0.02, from one seed."""

    def __init__(self, config: ModelConfig = SHAPE_2B4T, seed: int = 0) -> None:
        self.config = config
        self.generation = GenerationDefaults()
        self._rng = np.random.default_rng(seed)
        largest = max(rows * columns for rows, columns in projection_shapes(config).values())
        self._codes = self._rng.integers(-1, 2, largest + SHIFT * (7 * config.num_layers + 1), np.int8)

    def embedding(self) -> FloatTable:
        """Made anew at each call, from a pool of normal numbers."""
        config = self.config
        size = config.vocab_size * config.hidden_size
        values = self._rng.standard_normal(min(size, 1 << 23), np.float32) * np.float32(0.02)
        pool = (values.view(np.uint32) >> 16).astype(np.uint16)
        bits = np.empty(size, np.uint16)
        for number, start in enumerate(range(0, size, pool.size)):
            part = bits[start : start + pool.size]
            part[...] = np.roll(pool, number * TABLE_SHIFT)[: part.size]
        bits = bits.reshape(config.vocab_size, config.hidden_size)
        return FloatTable(bits, "bf16")

    def head(self) -> FloatTable | None:
        return None

    def final_norm(self) -> NDArray[np.float32]:
        return self._gain(self.config.hidden_size)

    def layer(self, index: int) -> LayerWeights:
        """The codes are views of the pool; the scale keeps the outputs of a linear near 1."""
        config = self.config
        matrices: dict[str, TernaryMatrix] = {}
        for number, (name, (rows, columns)) in enumerate(projection_shapes(config).items()):
            start = SHIFT * (7 * index + number)
            codes = self._codes[start : start + rows * columns].reshape(rows, columns)
            matrices[name] = TernaryMatrix(codes, float((columns * 2 / 3) ** -0.5))
        return LayerWeights(
            **matrices,
            input_norm=self._gain(config.hidden_size),
            post_attention_norm=self._gain(config.hidden_size),
            attn_sub_norm=self._gain(config.q_size) if config.sub_norms else None,
            ffn_sub_norm=self._gain(config.intermediate_size) if config.sub_norms else None,
        )

    def _gain(self, size: int) -> NDArray[np.float32]:
        return (1 + 0.1 * self._rng.standard_normal(size)).astype(np.float32)
