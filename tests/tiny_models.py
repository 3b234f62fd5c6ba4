"""Tiny random ternary models, written to disk in the forms that tritune reads, with the numbers that are in them.

Everything is written with NumPy alone, so a file made here is an independent statement of its format. The codes are
balanced (a third of each of -1, 0, 1) and each scale is about 1 / sqrt(2/3 * inputs), so that activations stay O(1).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
HF_MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
LinearClass = Literal["autobitlinear", "bitlinear"]
FloatType = Literal["BF16", "F16", "F32"]
# name -> (safetensors dtype, array of the bytes that go to the file)
Tensors = dict[str, tuple[str, NDArray[Any]]]


@dataclass
class TinyModel:
    """What a written model holds: the numbers that a reader must find again."""

    path: Path
    config: dict[str, Any]
    codes: dict[tuple[int, str], NDArray[np.int8]] = field(default_factory=dict)  # (layer, projection) -> [out, in]
    scales: dict[tuple[int, str], float] = field(default_factory=dict)  # (layer, projection) -> multiplier
    floats: dict[str, NDArray[np.float32]] = field(default_factory=dict)  # Hugging Face name -> values as stored

    @property
    def layers(self) -> int:
        return int(self.config["num_hidden_layers"])


def to_bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Round float32 to bfloat16 (nearest, ties to even); the raw bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(raw: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Expand raw bfloat16 bits to float32."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


def encode_float(values: NDArray[Any], dtype: FloatType) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """The stored array of a dtype, and its values in float32."""
    if dtype == "BF16":
        raw = to_bf16(values)
        return raw, from_bf16(raw)
    stored = np.asarray(values, dtype=np.float16 if dtype == "F16" else np.float32)
    return stored, stored.astype(np.float32)


def pack_hf(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack codes [out, in] to uint8 [out/4, in]: byte row r holds rows r, r + R, r + 2R, r + 3R, low bits first."""
    quarters = (codes + 1).astype(np.uint8).reshape(4, codes.shape[0] // 4, codes.shape[1])
    return quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file: u64 header length, JSON header padded to 8 bytes, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def write_shards(directory: Path, tensors: Tensors, shards: int) -> None:
    """Write one model.safetensors, or several shards with their index."""
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        write_safetensors(directory / file_name, {name: tensors[name] for name in part})
        weight_map.update(dict.fromkeys(part, file_name))
    index = {"metadata": {"total_size": sum(a.nbytes for _, a in tensors.values())}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def random_codes(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.int8]:
    """Codes of which a third is each of -1, 0 and 1, shuffled."""
    return rng.permutation(np.arange(rows * columns) % 3 - 1).astype(np.int8).reshape(rows, columns)


def projection_shapes(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """(out, in) of the seven projections."""
    hidden, ffn, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    return {
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, q),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }


def make_config(
    *,
    model_type: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int | None,
    ffn: int,
    vocab: int,
    act: str | None,
    tie: bool,
    max_positions: int,
    rope_theta: float,
) -> dict[str, Any]:
    """A config.json without its quantization_config."""
    return {
        "architectures": ["BitNetForCausalLM" if model_type == "bitnet" else "LlamaForCausalLM"],
        "model_type": model_type,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim if head_dim is not None else hidden // heads,
        "hidden_act": act or ("relu2" if model_type == "bitnet" else "silu"),
        "max_position_embeddings": max_positions,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-5,
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_theta": rope_theta, "rope_type": "default"},
        "use_cache": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": tie,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
    }


def float_tensors(
    config: dict[str, Any], sub_norms: bool, rng: np.random.Generator
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Hugging Face names and values of the embedding, the head and every norm."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    q = config["num_attention_heads"] * config["head_dim"]

    def gain(size: int) -> NDArray[Any]:
        return 1 + 0.1 * rng.standard_normal(size)

    yield "model.embed_tokens.weight", 2 / np.sqrt(hidden) * rng.standard_normal((vocab, hidden))
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", 2 / np.sqrt(hidden) * rng.standard_normal((vocab, hidden))
    yield "model.norm.weight", gain(hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", gain(hidden)
        yield prefix + "post_attention_layernorm.weight", gain(hidden)
        if sub_norms:
            yield prefix + "self_attn.attn_sub_norm.weight", gain(q)
            yield prefix + "mlp.ffn_sub_norm.weight", gain(config["intermediate_size"])


def packed_linear(
    rng: np.random.Generator, shape: tuple[int, int], divides: bool, dtype: FloatType
) -> tuple[NDArray[np.int8], float, NDArray[Any]]:
    """Codes, multiplier and the stored weight_scale of a packed linear."""
    codes = random_codes(rng, *shape)
    multiplier = rng.uniform(0.8, 1.2) / np.sqrt(2 / 3 * shape[1])
    stored, value = encode_float(np.array([1 / multiplier if divides else multiplier]), dtype)
    return codes, float(np.float32(1) / value[0] if divides else value[0]), stored


def master_linear(
    rng: np.random.Generator, shape: tuple[int, int], dtype: FloatType
) -> tuple[NDArray[np.int8], float, NDArray[Any]]:
    """Codes and multiplier that absmean quantisation gives for random weights, and the stored weights."""
    stored, value = encode_float(rng.standard_normal(shape) * 1.5 / np.sqrt(shape[1]), dtype)
    inverse = np.float32(1) / np.maximum(np.abs(value).mean(dtype=np.float64).astype(np.float32), np.float32(1e-5))
    return np.clip(np.rint(value * inverse), -1, 1).astype(np.int8), float(np.float32(1) / inverse), stored


def make_hf(
    path: Path | str,
    *,
    model_type: str = "bitnet",
    linear_class: LinearClass | None = "autobitlinear",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn: int = 96,
    vocab: int = 300,
    act: str | None = None,
    tie: bool = True,
    seed: int = 0,
    shards: int = 1,
    dtype: FloatType = "BF16",
    scale_dtype: FloatType = "F32",
    max_positions: int = 256,
    rope_theta: float = 10000.0,
    sub_norms: bool | None = None,
    old_names: bool = False,
) -> TinyModel:
    """Write a Hugging Face directory and return what is in it.

    ``linear_class`` None writes float master weights (``quantization_mode: online``). ``sub_norms`` defaults to what
    the model type has. ``old_names`` writes the sub-norms under the names of the first public checkpoints
    (inner_attn_ln, ffn_layernorm). transformers can load what this writes, except bitnet with
    heads * head_dim != hidden, and old names.
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    config = make_config(
        model_type=model_type, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=ffn,
        vocab=vocab, act=act, tie=tie, max_positions=max_positions, rope_theta=rope_theta,
    )  # fmt: skip
    config["quantization_config"] = {
        "quant_method": "bitnet",
        "linear_class": linear_class or "autobitlinear",
        "quantization_mode": "offline" if linear_class else "online",
        "modules_to_not_convert": ["lm_head"],
        "use_rms_norm": False,
        "rms_norm_eps": 1e-5,
    }
    model = TinyModel(directory, config)
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, values in float_tensors(config, model_type == "bitnet" if sub_norms is None else sub_norms, rng):
        stored, model.floats[name] = encode_float(values, dtype)
        if old_names:
            name = name.replace("attn_sub_norm", "inner_attn_ln").replace("ffn_sub_norm", "ffn_layernorm")
        tensors[name] = (dtype, stored)
    for layer in range(layers):
        for projection, shape in projection_shapes(config).items():
            key, name = (layer, projection), f"model.layers.{layer}.{HF_MODULES[projection]}.weight"
            if linear_class is None:
                model.codes[key], model.scales[key], stored = master_linear(rng, shape, dtype)
                tensors[name] = (dtype, stored)
                continue
            model.codes[key], model.scales[key], stored = packed_linear(
                rng, shape, linear_class == "bitlinear", scale_dtype
            )
            tensors[name] = ("U8", pack_hf(model.codes[key]))
            tensors[name + "_scale"] = (scale_dtype, stored)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3], "do_sample": False}))
    write_shards(directory, tensors, shards)
    return model
