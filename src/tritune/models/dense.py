"""A ternary model written as an ordinary one, a Hugging Face directory in bfloat16; and what such a directory computes.

Its config has no quantization_config: with one, transformers would round the linears back to ternary (online) or read
them as packed (offline). So nothing rounds the activations to int8 either, and the logits differ by that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ModelFileError
from tritune.formats.fields import read_json_object
from tritune.formats.file_bytes import row_blocks
from tritune.formats.safetensors import SafetensorsModel, open_safetensors_model
from tritune.formats.safetensors_write import BF16Tensor, to_bf16, write_bf16
from tritune.models.config import ModelConfig
from tritune.models.linears import module_path
from tritune.models.names import DENSE_MARK, HF_EMBEDDING, HF_FINAL_NORM, HF_HEAD, HF_NORMS, HF_PROJECTIONS, hf_layer
from tritune.models.weights import FloatTable, ModelSource, TernaryMatrix, norm_sizes
from tritune.ops.arrays import FloatArray, widen
from tritune.ops.causal_attention import causal_attention, split_heads
from tritune.ops.glu import glu
from tritune.ops.logits import logits
from tritune.ops.rms_norm_quant import rms_norm
from tritune.ops.rope import rope_table, rotate

Floats = NDArray[np.float32]
Correction = Callable[[int, str], Floats | None]
"""What is added to a projection's weight [out, in], by layer and projection; None: nothing."""


def check_dense(config: ModelConfig) -> None:
    """Raise ModelFileError for a model that transformers has no ordinary class for."""
    if config.sub_norms and config.q_size != config.hidden_size:
        raise ModelFileError(
            f"model {config.name}: heads × head_dim is {config.q_size}, hidden_size {config.hidden_size}; a dense "
            "export needs them equal (transformers' BitNet gives attn_sub_norm the hidden size)"
        )


def shape_config(config: ModelConfig) -> dict[str, Any]:
    """A model's sizes and functions under the names that a config.json has for them."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.activation,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_positions,
    }


def dense_config(config: ModelConfig, *, tied: bool) -> dict[str, Any]:
    """The config.json with which transformers loads the directory as an ordinary model."""
    kind = "bitnet" if config.sub_norms else "llama"
    return {
        "architectures": ["BitNetForCausalLM" if config.sub_norms else "LlamaForCausalLM"],
        "model_type": kind,
        **shape_config(config),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": tied,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "bfloat16",
        DENSE_MARK: True,
    }


def write_dense(source: ModelSource, folder: Path, correction: Correction) -> None:
    """Write config.json and the weights into a folder: a file for the tables and one for each layer, so that no more
    than a layer's codes and one matrix are in memory. Raises ModelFileError, OSError."""
    config = source.config
    check_dense(config)
    head = source.head()
    tables = {HF_EMBEDDING: _table(source.embedding()), HF_FINAL_NORM: _whole(source.final_norm())}
    if head is not None:
        tables[HF_HEAD] = _table(head)
    places: dict[str, str] = {}
    total = 0
    for index in range(config.num_layers + 1):
        tensors = _layer(source, index - 1, correction) if index else tables
        name = f"model-{index + 1:05d}-of-{config.num_layers + 1:05d}.safetensors"
        write_bf16(folder / name, tensors)
        places |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    index_text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2)
    (folder / "model.safetensors.index.json").write_text(index_text + "\n", encoding="utf-8")
    text = json.dumps(dense_config(config, tied=head is None), indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _layer(source: ModelSource, layer: int, correction: Correction) -> dict[str, BF16Tensor]:
    weights = source.layer(layer)
    tensors: dict[str, BF16Tensor] = {}
    for short, module in HF_PROJECTIONS.items():
        matrix: TernaryMatrix = getattr(weights, short)
        pieces = _linear(matrix, layer, f"{short}_proj", correction)
        tensors[hf_layer(layer, module) + ".weight"] = BF16Tensor(matrix.codes.shape, pieces)
    for norm in norm_sizes(source.config):
        tensors[hf_layer(layer, HF_NORMS[norm]) + ".weight"] = _whole(getattr(weights, norm))
    return tensors


def _linear(matrix: TernaryMatrix, layer: int, projection: str, correction: Correction) -> Iterator[NDArray[np.uint16]]:
    dense = matrix.codes.astype(np.float32) * np.float32(matrix.scale)
    added = correction(layer, projection)
    if added is not None:
        dense += added
    yield to_bf16(dense)


def _whole(values: Floats) -> BF16Tensor:
    return BF16Tensor(values.shape, [to_bf16(values)])


def _table(table: FloatTable) -> BF16Tensor:
    rows, columns = table.rows.shape
    pieces = (table.rows[part] for part in row_blocks(rows, 4 * columns))
    if table.dtype != "bf16":
        return BF16Tensor((rows, columns), (to_bf16(widen(piece, np.dtype(np.float32))) for piece in pieces))
    return BF16Tensor((rows, columns), pieces)


class DenseModel:
    """A directory that ``write_dense`` wrote, computed in float32 with NumPy, a layer at a time."""

    def __init__(self, folder: Path) -> None:
        self._tensors: SafetensorsModel = open_safetensors_model(folder)
        sub_norms = hf_layer(0, HF_NORMS["attn_sub_norm"]) + ".weight" in self._tensors
        self.config = ModelConfig.from_hf(read_json_object(folder / "config.json"), sub_norms=sub_norms)

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        """Logits float32 [T, vocab] after each token."""
        table = self._tensors.rows(HF_EMBEDDING)
        x = widen(np.concatenate([table[token : token + 1] for token in tokens]), np.dtype(np.float32))
        for layer in range(self.config.num_layers):
            x = self._block(layer, x)
        head = self._tensors.rows(HF_HEAD) if HF_HEAD in self._tensors else table
        x = rms_norm(x, self._read(HF_FINAL_NORM), self._eps)
        parts = row_blocks(head.shape[0], 4 * head.shape[1])
        return np.concatenate([logits(x, head[part]) for part in parts], axis=1)

    @property
    def _eps(self) -> float:
        return self.config.rms_norm_eps

    def _read(self, name: str) -> FloatArray:
        return widen(self._tensors.read(name), np.dtype(np.float32))

    def _norm(self, layer: int, norm: str, x: FloatArray) -> FloatArray:
        if norm not in norm_sizes(self.config):
            return x
        return rms_norm(x, self._read(hf_layer(layer, HF_NORMS[norm]) + ".weight"), self._eps)

    def _linear(self, layer: int, x: FloatArray, *projections: str) -> FloatArray:
        """The outputs of projections side by side."""
        return np.concatenate([x @ self._read(module_path(layer, name) + ".weight").T for name in projections], axis=-1)

    def _block(self, layer: int, x: FloatArray) -> FloatArray:
        config = self.config
        shape = (config.num_heads, config.num_kv_heads, config.head_dim)
        count = len(x)
        qkv = self._linear(layer, self._norm(layer, "input_norm", x), "q_proj", "k_proj", "v_proj")
        q, k, v = split_heads(qkv, *shape)
        table = rope_table(count, config.head_dim, config.rope_theta)
        rotated = [rotate(part, table, np.arange(count)) for part in (q, k)]
        qkv = np.concatenate([*rotated, v], axis=1).reshape(count, -1)
        o, _ = causal_attention(qkv, np.array([0, count]), *shape)
        x = x + self._linear(layer, self._norm(layer, "attn_sub_norm", o), "o_proj")
        gate_up = self._linear(layer, self._norm(layer, "post_attention_norm", x), "gate_proj", "up_proj")
        z = self._norm(layer, "ffn_sub_norm", glu(gate_up, config.activation))
        return x + self._linear(layer, z, "down_proj")
