"""Models in GGUF files: every number is found again, and what is wrong is refused by name."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_gguf import NORMS, Tensors, make_gguf
from tiny_models import PROJECTIONS, from_bf16
from tritune.errors import ModelFileError
from tritune.models.weights import open_model

KINDS: dict[str, dict[str, Any]] = {
    "I2_S": {},
    "TQ1_0": {"quant": "tq1_0", "layers": 1},
    "TQ2_0, version 2": {"quant": "tq2_0", "layers": 1, "version": 2},
    "bitnet-25, f32": {"arch": "bitnet-25", "embed": "f32"},
    "bitnet, bf16, own head": {"arch": "bitnet", "embed": "bf16", "tie": False},
    "llama, rows permuted": {"arch": "llama", "tie": False},
    "llama, TQ2_0, head size": {
        "arch": "llama",
        "quant": "tq2_0",
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 256,
        "layers": 1,
    },
    "separate scales": {"separate_scales": True},
    "duplicate head": {"duplicate_head": True},
}


def values(table: Any) -> Any:
    return from_bf16(table.data) if table.dtype == "bf16" else table.data.astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_found_again(kind: str, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "m.gguf", **KINDS[kind])
    source = open_model(tmp_path / "m.gguf")
    assert source.directory is None and source.gguf_metadata is not None
    assert source.gguf_metadata["tokenizer.ggml.tokens"][299] == "t299"
    assert source.config.name == "tiny"
    assert source.generation.eos_token_ids == (2,)
    embedding, head = source.embedding(), source.head()
    assert embedding.dtype == KINDS[kind].get("embed", "f16")
    np.testing.assert_array_equal(values(embedding), model.floats["model.embed_tokens.weight"])
    assert (head is None) == source.config.tie_word_embeddings == model.config["tie_word_embeddings"]
    if head is not None:
        np.testing.assert_array_equal(values(head), model.floats["lm_head.weight"])
    np.testing.assert_array_equal(source.final_norm(), model.floats["model.norm.weight"])
    for index in range(model.layers):
        layer = source.layer(index)
        for projection in PROJECTIONS:
            matrix = getattr(layer, projection)
            np.testing.assert_array_equal(matrix.codes, model.codes[index, projection])
            assert matrix.scale == model.scales[index, projection]
        norms = (layer.input_norm, layer.post_attention_norm, layer.attn_sub_norm, layer.ffn_sub_norm)
        for name, norm in zip(NORMS, norms, strict=True):
            expected = model.floats.get(f"model.layers.{index}.{name}.weight")
            assert (norm is None) == (expected is None)
            if norm is not None:
                np.testing.assert_array_equal(norm, expected)


def test_a_quantised_table_is_kept_as_f16(tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "m.gguf", embed="q8_0", vocab=9000, layers=1)
    table = open_model(tmp_path / "m.gguf").embedding()
    assert (table.dtype, table.data.dtype) == ("f16", np.float16)
    np.testing.assert_array_equal(table.data, model.floats["model.embed_tokens.weight"].astype(np.float16))


def test_a_quantised_table_beyond_f16_is_refused(tmp_path: Path) -> None:
    block = struct.pack("<e32b", 60000.0, *[127] * 32)
    make_gguf(tmp_path / "m.gguf", extra={"token_embd.weight": (8, (300, 64), block * 600)})
    with pytest.raises(ModelFileError, match=r"token_embd\.weight holds values that float16 cannot"):
        _ = open_model(tmp_path / "m.gguf").embedding().data


def test_a_name_comes_from_the_file_or_its_path(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf", metadata={"general.name": ""})
    assert open_model(tmp_path / "m.gguf").config.name == "m"


OPENING: list[tuple[str, dict[str, Any]]] = [
    ("general.architecture is 'qwen2'", {"metadata": {"general.architecture": "qwen2"}}),
    ("tensor blk.0.attn_q.bias has no place", {"extra": {"blk.0.attn_q.bias": (0, (64,), bytes(256))}}),
    ("tensor rope_freqs.weight: scaled rotary", {"extra": {"rope_freqs.weight": (0, (8,), bytes(32))}}),
    (r"attn_q.weight has shape \(32, 64\)", {"extra": {"blk.1.attn_q.weight": (36, (32, 64), bytes(512 + 32))}}),
    (r"attn_q.weight has type F16 \(id 1\)", {"extra": {"blk.1.attn_q.weight": (1, (64, 64), bytes(8192))}}),
    (r"attn_norm.weight has type I2_S \(id 36\)", {"extra": {"blk.0.attn_norm.weight": (36, (64,), bytes(48))}}),
    (r"attn_q.scale has shape \(2,\)", {"extra": {"blk.0.attn_q.scale": (0, (2,), bytes(8))}}),
    (r"output.weight has shape \(299, 64\)", {"extra": {"output.weight": (1, (299, 64), bytes(299 * 128))}}),
    ("blk.2.attn_norm.weight is missing", {"metadata": {"bitnet-b1.58.block_count": 3}}),
    ("blk.1.attn_norm.weight has no place", {"metadata": {"bitnet-b1.58.block_count": 1}}),
]


@pytest.mark.parametrize(("message", "options"), OPENING)
def test_what_does_not_fit_is_refused_when_opened(tmp_path: Path, message: str, options: dict[str, Any]) -> None:
    make_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(ModelFileError, match=message) as caught:
        open_model(tmp_path / "m.gguf")
    assert "\n" not in str(caught.value)


READING: list[tuple[str, Tensors]] = [
    ("its scale is nan", {"blk.1.attn_q.weight": (36, (64, 64), bytes(1024) + struct.pack("<f", np.nan) + bytes(28))}),
    ("2-bit value 3", {"blk.1.attn_q.weight": (36, (64, 64), b"\xff" * 1024 + bytes(32))}),
    ("attn_norm.weight holds values that are not finite", {"blk.1.attn_norm.weight": (0, (64,), b"\xff" * 256)}),
    ("attn_q.scale holds", {"blk.1.attn_q.scale": (0, (1,), b"\xff" * 4)}),
]


@pytest.mark.parametrize(("message", "extra"), READING)
def test_values_that_cannot_be_used_are_refused_when_read(tmp_path: Path, message: str, extra: Tensors) -> None:
    make_gguf(tmp_path / "m.gguf", extra=extra)
    source = open_model(tmp_path / "m.gguf")
    source.layer(0)
    with pytest.raises(ModelFileError, match=message):
        source.layer(1)


def test_a_tensor_that_is_not_one_scale_is_refused(tmp_path: Path) -> None:
    block = bytes(64) + struct.pack("<e", 1.0) + bytes(64) + struct.pack("<e", 2.0)
    make_gguf(
        tmp_path / "m.gguf", quant="tq2_0", layers=1, extra={"blk.0.attn_q.weight": (35, (256, 256), block * 128)}
    )
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight: not one-scale ternary"):
        open_model(tmp_path / "m.gguf").layer(0)
