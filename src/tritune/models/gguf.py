"""A model in a GGUF file: ternary projections in I2_S, TQ1_0 or TQ2_0, the tokenizer in its metadata."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ModelFileError
from tritune.formats.file_bytes import equal_rows
from tritune.formats.gguf import I2_S, TQ1_0, TQ2_0, GGUFModel
from tritune.formats.packing import decode_i2_s, decode_tq1_0, decode_tq2_0
from tritune.models.config import GenerationDefaults, ModelConfig
from tritune.models.names import (
    GGUF_EMBEDDING,
    GGUF_FINAL_NORM,
    GGUF_HEAD,
    GGUF_NORMS,
    GGUF_PROJECTIONS,
    gguf_layer,
)
from tritune.models.weights import FloatTable, LayerWeights, ModelSource, TernaryMatrix, norm_sizes, projection_shapes

Decoder = Callable[[NDArray[np.uint8], tuple[int, int], str], tuple[NDArray[np.int8], float]]

DECODERS: dict[int, Decoder] = {I2_S: decode_i2_s, TQ1_0: decode_tq1_0, TQ2_0: decode_tq2_0}

FLOAT_TYPES: dict[str, tuple[Literal["f32", "f16", "bf16"], str]] = {
    "F32": ("f32", "<f4"),
    "F16": ("f16", "<f2"),
    "BF16": ("bf16", "<u2"),
}


@dataclass(frozen=True)
class QuantisedRows:
    """A quantised table, in float16: a RowSource."""

    file: GGUFModel
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.file.info(self.name).shape

    def __getitem__(self, rows: slice, /) -> NDArray[np.float16]:
        with np.errstate(over="ignore", invalid="ignore"):
            values = self.file.dequantise(self.name, rows).astype(np.float16)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.file.path}: tensor {self.name} holds values that float16 cannot")
        return values


class GGUFSource(ModelSource):
    """A GGUF model, opened and checked. See ModelSource for what it gives."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFModel(path)
        self.gguf_metadata = self._file.metadata
        table = self._file.info(GGUF_EMBEDDING)
        # The first uploads of 2B-4T carry a second copy of the embedding as their head.
        self._own_head = GGUF_HEAD in self._file.infos and not self._same(GGUF_HEAD, GGUF_EMBEDDING)
        name = self._file.metadata.get("general.name")
        self.config = ModelConfig.from_gguf(
            self._file.metadata,
            sub_norms=gguf_layer(0, "attn_sub_norm") + ".weight" in self._file.infos,
            tied=not self._own_head,
            vocab_size=table.shape[0],
            name=name if isinstance(name, str) and name else path.stem,
            where=str(path),
        )
        self.generation = GenerationDefaults(eos_token_ids=self.config.eos_token_ids)
        _check_tensors(self._file, self.config)

    def embedding(self) -> FloatTable:
        return self._table(GGUF_EMBEDDING)

    def head(self) -> FloatTable | None:
        return self._table(GGUF_HEAD) if self._own_head else None

    def final_norm(self) -> NDArray[np.float32]:
        return self._vector(GGUF_FINAL_NORM)

    def layer(self, index: int) -> LayerWeights:
        shapes = projection_shapes(self.config)
        linears = {p: self._linear(gguf_layer(index, GGUF_PROJECTIONS[p]), shapes[p]) for p in shapes}
        if self.config.model_type == "llama":
            linears["q"] = _half_split_rows(linears["q"], self.config.num_heads)
            linears["k"] = _half_split_rows(linears["k"], self.config.num_kv_heads)
        norms: dict[str, NDArray[np.float32] | None] = {"attn_sub_norm": None, "ffn_sub_norm": None}
        for norm in norm_sizes(self.config):
            norms[norm] = self._vector(gguf_layer(index, GGUF_NORMS[norm]) + ".weight")
        return LayerWeights(**linears, **norms)  # pyright: ignore[reportArgumentType]

    def _linear(self, name: str, shape: tuple[int, int]) -> TernaryMatrix:
        """Codes and multiplier of a linear; some files keep a factor of the multiplier in a tensor of its own."""
        info = self._file.info(name + ".weight")
        codes, scale = DECODERS[info.type_id](self._file.raw(info.name), shape, info.name)
        if name + ".scale" in self._file.infos:
            with np.errstate(all="ignore"):
                scale = float(np.float32(scale) * self._vector(name + ".scale")[0])
            if not math.isfinite(scale):
                raise ModelFileError(f"{self._file.path}: tensor {name}.scale makes a scale that is not finite")
        return TernaryMatrix(codes, scale)

    def _table(self, name: str) -> FloatTable:
        """A table as it is stored if it is stored in floats, and in float16 if it is quantised."""
        info = self._file.info(name)
        if info.type_name in FLOAT_TYPES:
            dtype, stored = FLOAT_TYPES[info.type_name]
            return FloatTable(self._file.rows(name, stored), dtype)
        return FloatTable(QuantisedRows(self._file, name), "f16")

    def _vector(self, name: str) -> NDArray[np.float32]:
        """A one-dimensional tensor as float32. Raises ModelFileError when a value is not finite."""
        values = self._file.dequantise(name, slice(None)).reshape(-1)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self._file.path}: tensor {name} holds values that are not finite")
        return values

    def _same(self, a: str, b: str) -> bool:
        """Whether two tensors hold the same bytes in the same type."""
        first, second = self._file.info(a), self._file.info(b)
        same_kind = (first.type_id, first.shape) == (second.type_id, second.shape)
        return same_kind and equal_rows(self._file.rows(a), self._file.rows(b))


def _check_tensors(file: GGUFModel, config: ModelConfig) -> None:
    """Check that each tensor is there, with the shape and a type that fit the config, and that no other is."""
    expected = _expected_tensors(config)
    for name in [name for name in expected if name.endswith(".scale") and name not in file.infos]:
        del expected[name]
    if config.tie_word_embeddings and GGUF_HEAD not in file.infos:
        del expected[GGUF_HEAD]
    for name, (shape, ternary) in expected.items():
        info = file.info(name)
        if info.shape != shape:
            raise ModelFileError(f"{file.path}: tensor {name} has shape {info.shape}; the metadata ask for {shape}")
        if ternary != (info.type_id in DECODERS):
            wanted = "a ternary one (I2_S, TQ1_0 or TQ2_0)" if ternary else "one of floats"
            raise ModelFileError(
                f"{file.path}: tensor {name} has type {info.type_name} (id {info.type_id}); expected {wanted}"
            )
    for name in file.infos:
        if name == "rope_freqs.weight":
            raise ModelFileError(f"{file.path}: tensor {name}: scaled rotary embeddings are not supported")
        if name not in expected:
            raise ModelFileError(f"{file.path}: tensor {name} has no place in this model")


def _expected_tensors(config: ModelConfig) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Shape of every tensor that a model of this config can have, and whether it is ternary, by name."""
    table = (config.vocab_size, config.hidden_size)
    expected: dict[str, tuple[tuple[int, ...], bool]] = {
        GGUF_EMBEDDING: (table, False),
        GGUF_HEAD: (table, False),
        GGUF_FINAL_NORM: ((config.hidden_size,), False),
    }
    for index in range(config.num_layers):
        for norm, size in norm_sizes(config).items():
            expected[gguf_layer(index, GGUF_NORMS[norm]) + ".weight"] = ((size,), False)
        for projection, shape in projection_shapes(config).items():
            name = gguf_layer(index, GGUF_PROJECTIONS[projection])
            expected[name + ".weight"] = (shape, True)
            expected[name + ".scale"] = ((1,), False)
    return expected


def _half_split_rows(matrix: TernaryMatrix, heads: int) -> TernaryMatrix:
    """Put the rows of q or k back in half-split order: "llama" files interleave the two halves of each head."""
    rows, columns = matrix.codes.shape
    pairs = matrix.codes.reshape(heads, rows // heads // 2, 2, columns)
    return TernaryMatrix(np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns), matrix.scale)
