"""A model in a Hugging Face directory: config.json, safetensors, tokenizer files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ModelFileError
from tritune.formats.fields import read_json_object
from tritune.formats.file_bytes import equal_rows
from tritune.formats.packing import unpack_hf
from tritune.formats.safetensors import SafetensorsModel, open_safetensors_model
from tritune.models.config import GenerationDefaults, ModelConfig
from tritune.models.names import (
    DENSE_MARK,
    HF_EMBEDDING,
    HF_FINAL_NORM,
    HF_HEAD,
    HF_NORMS,
    HF_OLD_NORMS,
    HF_PROJECTIONS,
    hf_layer,
)
from tritune.models.weights import (
    FloatTable,
    LayerWeights,
    ModelSource,
    TernaryMatrix,
    norm_sizes,
    projection_shapes,
    quantise_master,
)

FLOAT_TYPES: dict[str, Literal["f32", "f16", "bf16"]] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}

# How the ternary weights are stored: packed with a scale that multiplies or divides, or as float master weights.
Storage = Literal["multiply", "divide", "master"]


class HFSource(ModelSource):
    """A model directory, opened and checked. See ModelSource for what it gives."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        config = read_json_object(directory / "config.json")
        self._tensors = open_safetensors_model(directory)
        norm_names = _norm_names(self._tensors)
        self.config = ModelConfig.from_hf(
            config, sub_norms=True if norm_names else None, name=name, where=str(directory / "config.json")
        )
        self._norm_names = norm_names or HF_NORMS
        generation = directory / "generation_config.json"
        self.generation = GenerationDefaults.from_hf(
            read_json_object(generation) if generation.is_file() else None, self.config, str(generation)
        )
        self._storage = _storage(config, self._tensors, self.config.sub_norms)
        _check_tensors(self._tensors, self.config, self._storage, self._norm_names)

    def embedding(self) -> FloatTable:
        return self._table(HF_EMBEDDING)

    def head(self) -> FloatTable | None:
        if HF_HEAD not in self._tensors:
            return None
        head = self._table(HF_HEAD)
        # transformers ties a head that the config calls tied only when the file does not contradict it.
        if self.config.tie_word_embeddings and _equal_tables(head, self.embedding()):
            return None
        return head

    def final_norm(self) -> NDArray[np.float32]:
        return self._floats(HF_FINAL_NORM)

    def layer(self, index: int) -> LayerWeights:
        linears = {p: self._linear(hf_layer(index, module)) for p, module in HF_PROJECTIONS.items()}
        norms: dict[str, NDArray[np.float32] | None] = {"attn_sub_norm": None, "ffn_sub_norm": None}
        for norm in norm_sizes(self.config):
            norms[norm] = self._floats(hf_layer(index, self._norm_names[norm]) + ".weight")
        return LayerWeights(**linears, **norms)  # pyright: ignore[reportArgumentType]

    def _linear(self, name: str) -> TernaryMatrix:
        """Codes and multiplier of one linear."""
        if self._storage == "master":
            return quantise_master(self._floats(name + ".weight"))
        scale = self._floats(name + ".weight_scale").reshape(1)[0]
        if self._storage == "divide":
            with np.errstate(all="ignore"):
                reciprocal = np.float32(1) / scale
            if not np.isfinite(reciprocal):
                raise ModelFileError(
                    f"{self.directory}: tensor {name}.weight_scale is {scale}; the output cannot be divided by it"
                )
            scale = reciprocal
        return TernaryMatrix(unpack_hf(self._tensors.read(name + ".weight"), name + ".weight"), float(scale))

    def _table(self, name: str) -> FloatTable:
        return FloatTable(self._tensors.rows(name), FLOAT_TYPES[self._tensors.info(name).dtype])

    def _floats(self, name: str) -> NDArray[np.float32]:
        """A float tensor as float32. Raises ModelFileError when a value is not finite."""
        data = self._tensors.read(name)
        if self._tensors.info(name).dtype == "BF16":
            values = (data.astype(np.uint32) << 16).view(np.float32)
        else:
            values = data.astype(np.float32)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.directory}: tensor {name} holds values that are not finite")
        return values


def _check_tensors(
    tensors: SafetensorsModel, config: ModelConfig, storage: Storage, norm_names: Mapping[str, str]
) -> None:
    """Check that each tensor is there, with the shape and a dtype that the config asks for, and no other."""
    expected = _expected_tensors(config, storage, norm_names)
    if config.tie_word_embeddings and HF_HEAD not in tensors:
        del expected[HF_HEAD]
    for name, (shape, dtypes) in expected.items():
        info = tensors.info(name)
        # One number is stored as [1] or as a scalar.
        if info.shape != shape and (shape, info.shape) != ((1,), ()):
            raise ModelFileError(
                f"{tensors.directory}: tensor {name} has shape {info.shape}; the config asks for {shape}"
            )
        if info.dtype not in dtypes:
            raise ModelFileError(
                f"{tensors.directory}: tensor {name} has dtype {info.dtype}; expected {' or '.join(dtypes)}"
            )
    for name in tensors.names():
        # Old checkpoints carry the rotary frequencies, which follow from the config.
        if name not in expected and not name.endswith(".rotary_emb.inv_freq"):
            raise ModelFileError(f"{tensors.directory}: tensor {name} has no place in this model")


def _expected_tensors(
    config: ModelConfig, storage: Storage, norm_names: Mapping[str, str]
) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    """Shape and possible dtypes of every tensor that a model of this config can have, by name."""
    floats = tuple(FLOAT_TYPES)
    table = (config.vocab_size, config.hidden_size)
    expected: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        HF_EMBEDDING: (table, floats),
        HF_HEAD: (table, floats),
        HF_FINAL_NORM: ((config.hidden_size,), floats),
    }
    for index in range(config.num_layers):
        for norm, size in norm_sizes(config).items():
            expected[hf_layer(index, norm_names[norm]) + ".weight"] = ((size,), floats)
        for projection, (rows, columns) in projection_shapes(config).items():
            name = hf_layer(index, HF_PROJECTIONS[projection]) + ".weight"
            if storage == "master":
                expected[name] = ((rows, columns), floats)
            else:
                expected[name] = ((rows // 4, columns), ("U8",))
                expected[name + "_scale"] = ((1,), floats)
    return expected


def _norm_names(tensors: SafetensorsModel) -> Mapping[str, str] | None:
    """The naming of the file's sub-norms, or None when it has none."""
    for names in (HF_NORMS, HF_OLD_NORMS):
        if hf_layer(0, names["attn_sub_norm"]) + ".weight" in tensors:
            return names
    return None


def _storage(config: Mapping[str, Any], tensors: SafetensorsModel, sub_norms: bool) -> Storage:
    """How the file stores its ternary weights, told by the dtype of the first one and the quantization_config."""
    if config.get(DENSE_MARK):
        raise ModelFileError(
            f"{tensors.directory}: a dense export of tritune; rounding it back to ternary would lose what its adapter "
            "learned: load the base, with the adapter beside it"
        )
    first = hf_layer(0, HF_PROJECTIONS["q"])
    dtype = tensors.info(first + ".weight").dtype
    quantization = cast("Mapping[str, Any]", config.get("quantization_config") or {})
    if dtype == "U8":
        if quantization.get("quantization_mode") == "online":
            raise ModelFileError(
                f"{tensors.directory}: config.json has quantization_mode online, which is for float weights, "
                f"but {first}.weight is packed (U8)"
            )
        return "multiply" if quantization.get("linear_class") == "autobitlinear" else "divide"
    if first + ".weight_scale" in tensors:
        raise ModelFileError(
            f"{tensors.directory}: tensor {first}.weight has dtype {dtype}; expected U8 (packed ternary)"
        )
    if not quantization and not sub_norms:
        raise ModelFileError(
            f"{tensors.directory}: not a ternary model: its weights are {dtype} and config.json has no "
            "quantization_config"
        )
    return "master"


def _equal_tables(a: FloatTable, b: FloatTable) -> bool:
    """Whether two tables hold the same bits."""
    return a.dtype == b.dtype and equal_rows(a.rows, b.rows)
