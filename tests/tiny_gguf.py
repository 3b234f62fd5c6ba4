"""Tiny random ternary models as GGUF files, written byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from tiny_models import TinyModel, float_tensors, make_config, projection_shapes, random_codes, to_bf16

Quant = Literal["i2_s", "tq1_0", "tq2_0"]
TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30, "tq1_0": 34, "tq2_0": 35, "i2_s": 36}
MODULES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
}
# name -> (type id, shape with rows first, bytes)
Tensors = dict[str, tuple[int, tuple[int, ...], bytes]]


def encode_i2_s(codes: NDArray[np.int8], scale: float) -> bytes:
    """I2_S of a matrix: of each 128 values, byte p has values p, 32 + p, 64 + p, 96 + p from the high bits down."""
    blocks = (codes.reshape(-1, 4, 32) + 1).astype(np.uint8)
    packed = blocks[:, 0] << 6 | blocks[:, 1] << 4 | blocks[:, 2] << 2 | blocks[:, 3]
    # Only the first four bytes of the tail count; the rest is whatever lay in the writer's memory.
    return packed.tobytes() + struct.pack("<f", scale) + bytes(range(100, 128))


def encode_ternary(codes: NDArray[np.int8], scale: float, quant: Quant) -> tuple[bytes, float]:
    """The bytes of a ternary matrix, and its scale as they hold it."""
    if quant == "i2_s":
        return encode_i2_s(codes, scale), float(np.float32(scale))
    kind = GGMLQuantizationType[quant.upper()]
    stored = float(np.float16(scale))
    return quants.quantize(codes.astype(np.float32) * np.float32(stored), kind).tobytes(), stored


def encode_table(values: NDArray[Any], kind: str) -> tuple[int, bytes, NDArray[np.float32]]:
    """Type id, bytes and float32 values of a table in f32, f16, bf16 or q8_0."""
    values = np.asarray(values, dtype=np.float32)
    if kind == "bf16":
        raw = to_bf16(values)
        return TYPES[kind], raw.tobytes(), (raw.astype(np.uint32) << 16).view(np.float32)
    if kind == "q8_0":
        blocks = quants.quantize(values, GGMLQuantizationType.Q8_0)
        return TYPES[kind], blocks.tobytes(), quants.dequantize(blocks, GGMLQuantizationType.Q8_0).astype(np.float32)
    stored = values.astype(np.float16 if kind == "f16" else np.float32)
    return TYPES[kind], stored.tobytes(), stored.astype(np.float32)


def interleave_rows(codes: NDArray[np.int8], heads: int) -> NDArray[np.int8]:
    """Row order of q and k in "llama" files: of each head, rows 0, d/2, 1, d/2 + 1, …"""
    head_dim = codes.shape[0] // heads
    order = [head * head_dim + half * head_dim // 2 + i
             for head in range(heads) for i in range(head_dim // 2) for half in range(2)]  # fmt: skip
    return codes[order]


def encode_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def encode_value(value: Any) -> bytes:
    """A metadata value with its type: bool, u32, f32, string, or an array of i32 or strings."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + encode_string(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(encode_string(item) for item in value)
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def gguf_bytes(metadata: Mapping[str, Any], tensors: Tensors, *, version: int = 3, alignment: int = 32) -> bytes:
    """A whole GGUF file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += encode_string(key) + encode_value(value)
    body = b""
    for name, (kind, shape, data) in tensors.items():
        body += b"\0" * (-len(body) % alignment)
        head += encode_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", kind, len(body))
        body += data
    return head + b"\0" * (-len(head) % alignment) + body


def gguf_metadata(arch: str, config: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """Keys of a model file, with a small tokenizer."""
    return {
        "general.architecture": arch,
        "general.name": "tiny",
        f"{arch}.vocab_size": config["vocab_size"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{arch}.rope.freq_base": config["rope_theta"],
        f"{arch}.rope.dimension_count": config["head_dim"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


def make_gguf(
    path: Path | str,
    *,
    arch: str = "bitnet-b1.58",
    quant: Quant = "i2_s",
    hidden: int | None = None,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn: int | None = None,
    vocab: int = 300,
    tie: bool = True,
    duplicate_head: bool = False,
    embed: str = "f16",
    separate_scales: bool = False,
    seed: int = 0,
    version: int = 3,
    metadata: Mapping[str, Any] | None = None,
    extra: Tensors | None = None,
) -> TinyModel:
    """Write a .gguf file and return what is in it (names and row order as in a Hugging Face file).

    Sizes default to the smallest that the quantisation allows. ``separate_scales`` moves half of each scale to a tensor
    of its own. ``metadata`` and ``extra`` add to, or replace, the keys and tensors of the file.
    """
    hidden = hidden or (64 if quant == "i2_s" else 256)
    config = make_config(
        model_type="llama" if arch == "llama" else "bitnet",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn or (96 if quant == "i2_s" else 256),
        vocab=vocab,
        act="relu2" if arch in ("bitnet-b1.58", "bitnet-25") else "silu",
        tie=tie,
        max_positions=256,
        rope_theta=10000.0,
    )
    model = TinyModel(Path(path), config)
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, values in float_tensors(config, arch != "llama", rng):
        is_table = values.ndim == 2
        kind, data, model.floats[name] = encode_table(values, embed if is_table else "f32")
        tensors[gguf_name(name)] = (kind, values.shape, data)
    if duplicate_head:
        tensors["output.weight"] = tensors["token_embd.weight"]
    for layer in range(layers):
        for projection, shape in projection_shapes(config).items():
            codes, scale = random_codes(rng, *shape), rng.uniform(0.8, 1.2) / np.sqrt(2 / 3 * shape[1])
            written = codes
            if arch == "llama" and projection in "qk":
                written = interleave_rows(codes, heads if projection == "q" else kv_heads)
            data, stored = encode_ternary(written, scale, quant)
            name = f"blk.{layer}.{MODULES[projection]}"
            tensors[name + ".weight"] = (TYPES[quant], shape, data)
            if separate_scales:
                tensors[name + ".scale"] = (0, (1,), struct.pack("<f", 0.5))
                stored *= 0.5
            model.codes[layer, projection], model.scales[layer, projection] = codes, stored
    keys = gguf_metadata(arch, config, [f"t{i}" for i in range(vocab)]) | dict(metadata or {})
    model.path.write_bytes(gguf_bytes(keys, tensors | (extra or {}), version=version))
    return model


def gguf_name(name: str) -> str:
    """The GGUF name of a float tensor."""
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in fixed:
        return fixed[name]
    layer, module = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{NORMS[module]}.weight"
