"""Models in Hugging Face directories: every number is found again, and what is wrong is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_models import (
    PROJECTIONS,
    Tensors,
    TinyModel,
    from_bf16,
    make_hf,
    write_safetensors,
)
from tritune.errors import ModelFileError
from tritune.formats.safetensors import open_safetensors_model
from tritune.models.weights import open_model, quantise_master

KINDS: dict[str, dict[str, Any]] = {
    "multiply": {},
    "divide": {"linear_class": "bitlinear", "scale_dtype": "BF16"},
    "master": {"linear_class": None},
    "shards": {"shards": 4},
    "multiples of 4 only": {"hidden": 36, "heads": 3, "kv_heads": 1, "head_dim": 12, "ffn": 28},
    "own head size": {"head_dim": 24, "kv_heads": 4},
    "llama": {"model_type": "llama", "tie": False, "dtype": "F16"},
    "old names": {"old_names": True, "act": "silu", "linear_class": None, "dtype": "F32"},
    "old names, llama": {"old_names": True, "model_type": "llama", "sub_norms": True},
}


def change_config(model: TinyModel, **changes: Any) -> None:
    (model.path / "config.json").write_text(json.dumps(model.config | changes))


def change_tensors(model: TinyModel, changes: Tensors, remove: str | None = None) -> None:
    """Replace, add or remove tensors of a model of one file."""
    stored = open_safetensors_model(model.path)
    tensors: Tensors = {name: (stored.info(name).dtype, np.array(stored.read(name))) for name in stored.names()}
    tensors.update(changes)
    if remove is not None:
        del tensors[remove]
    (model.path / "model.safetensors").unlink()
    write_safetensors(model.path / "model.safetensors", tensors)


def values(table: Any) -> Any:
    return from_bf16(table.data) if table.dtype == "bf16" else table.data.astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_found_again(kind: str, tmp_path: Path) -> None:
    model = make_hf(tmp_path, **KINDS[kind])
    source = open_model(tmp_path)
    assert source.directory == tmp_path
    np.testing.assert_array_equal(values(source.embedding()), model.floats["model.embed_tokens.weight"])
    head = source.head()
    assert (head is None) == model.config["tie_word_embeddings"]
    if head is not None:
        np.testing.assert_array_equal(values(head), model.floats["lm_head.weight"])
    np.testing.assert_array_equal(source.final_norm(), model.floats["model.norm.weight"])
    for index in range(model.layers):
        layer = source.layer(index)
        for projection in PROJECTIONS:
            matrix = getattr(layer, projection)
            assert matrix.codes.dtype == np.int8
            np.testing.assert_array_equal(matrix.codes, model.codes[index, projection])
            assert matrix.scale == model.scales[index, projection]
        norms = {
            "input_layernorm": layer.input_norm,
            "post_attention_layernorm": layer.post_attention_norm,
            "self_attn.attn_sub_norm": layer.attn_sub_norm,
            "mlp.ffn_sub_norm": layer.ffn_sub_norm,
        }
        for name, norm in norms.items():
            expected = model.floats.get(f"model.layers.{index}.{name}.weight")
            assert (norm is None) == (expected is None)
            if norm is not None:
                assert norm.dtype == np.float32
                np.testing.assert_array_equal(norm, expected)


def test_generation_defaults_and_name(tmp_path: Path) -> None:
    make_hf(tmp_path / "tiny")
    source = open_model(str(tmp_path / "tiny"))
    assert source.generation.eos_token_ids == (2, 3)
    assert source.config.name == "tiny"
    (tmp_path / "tiny" / "generation_config.json").unlink()
    assert open_model(tmp_path / "tiny").generation.eos_token_ids == (2,)


def test_master_weights_of_a_repository_without_quantization_config(tmp_path: Path) -> None:
    model = make_hf(tmp_path, linear_class=None)
    change_config(model, quantization_config=None)
    np.testing.assert_array_equal(open_model(tmp_path).layer(0).q.codes, model.codes[0, "q"])


def test_master_weights_round_half_to_even_and_never_divide_by_zero() -> None:
    # mean |W| = 1, so halves are met exactly
    matrix = quantise_master(np.array([[0.5, -0.5, 1.5, -1.5], [0.75, -0.75, 1.25, -1.25]], dtype=np.float32))
    assert matrix.codes.tolist() == [[0, 0, 1, -1], [1, -1, 1, -1]]
    assert matrix.scale == 1.0
    zeros = quantise_master(np.zeros((4, 4), dtype=np.float32))
    assert not zeros.codes.any()
    assert zeros.scale == pytest.approx(1e-5)


def test_a_dense_llama_is_refused(tmp_path: Path) -> None:
    model = make_hf(tmp_path, model_type="llama", linear_class=None)
    change_config(model, quantization_config=None)
    with pytest.raises(ModelFileError, match="not a ternary model: its weights are BF16"):
        open_model(tmp_path)


def test_packed_weights_called_online_are_refused(tmp_path: Path) -> None:
    model = make_hf(tmp_path)
    change_config(model, quantization_config={"linear_class": "autobitlinear", "quantization_mode": "online"})
    with pytest.raises(ModelFileError, match="quantization_mode online"):
        open_model(tmp_path)


def test_the_default_linear_class_divides(tmp_path: Path) -> None:
    model = make_hf(tmp_path, linear_class="bitlinear")
    change_config(model, quantization_config={"quant_method": "bitnet"})
    assert open_model(tmp_path).layer(1).down.scale == model.scales[1, "down"]


@pytest.mark.parametrize("equal", [True, False])
def test_a_head_in_a_tied_model_counts_only_when_it_is_another(tmp_path: Path, equal: bool) -> None:
    model = make_hf(tmp_path)
    table = np.array(open_safetensors_model(tmp_path).read("model.embed_tokens.weight"))
    table[5, 5] ^= 0 if equal else 1
    change_tensors(model, {"lm_head.weight": ("BF16", table)})
    assert (open_model(tmp_path).head() is None) == equal


def test_rotary_frequencies_of_old_files_are_ignored(tmp_path: Path) -> None:
    model = make_hf(tmp_path)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(model, {name: ("F32", np.ones(8, dtype=np.float32))})
    open_model(tmp_path)


Q = "model.layers.1.self_attn.q_proj"
NAN = np.array([np.nan], dtype=np.float32)
OPENING: list[tuple[str, Tensors]] = [
    (f"tensor {Q}.bias has no place", {Q + ".bias": ("F32", np.zeros(64, dtype=np.float32))}),
    (r"has shape \(15, 64\); the config asks for \(16, 64\)", {Q + ".weight": ("U8", np.zeros((15, 64), np.uint8))}),
    ("has dtype F32; expected U8", {Q + ".weight": ("F32", np.zeros((16, 64), np.float32))}),
    (r"weight_scale has shape \(2,\)", {Q + ".weight_scale": ("F32", np.ones(2, np.float32))}),
    (
        r"embed_tokens.weight has shape \(10, 64\)",
        {"model.embed_tokens.weight": ("F32", np.ones((10, 64), np.float32))},
    ),
    ("embed_tokens.weight has dtype U8", {"model.embed_tokens.weight": ("U8", np.ones((300, 64), np.uint8))}),
    ("model.norm.weight has dtype F64", {"model.norm.weight": ("F64", np.ones(64))}),
]


@pytest.mark.parametrize(("message", "changes"), OPENING)
def test_tensors_that_do_not_fit_are_refused_when_opened(tmp_path: Path, message: str, changes: Tensors) -> None:
    model = make_hf(tmp_path)
    change_tensors(model, changes)
    with pytest.raises(ModelFileError, match=message):
        open_model(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.layers.1.mlp.down_proj.weight_scale",
        "model.layers.1.mlp.ffn_sub_norm.weight",
        "model.layers.0.self_attn.attn_sub_norm.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    model = make_hf(tmp_path)
    change_tensors(model, {}, remove=name)
    with pytest.raises(ModelFileError, match=f"tensor {name} is missing"):
        open_model(tmp_path)


def test_a_missing_head_is_named(tmp_path: Path) -> None:
    model = make_hf(tmp_path)
    change_config(model, tie_word_embeddings=False)
    with pytest.raises(ModelFileError, match=r"tensor lm_head\.weight is missing"):
        open_model(tmp_path)


READING: list[tuple[str, Tensors]] = [
    ("2-bit value 3", {Q + ".weight": ("U8", np.full((16, 64), 0xFF, np.uint8))}),
    ("weight_scale holds values that are not finite", {Q + ".weight_scale": ("F32", NAN)}),
    (
        "input_layernorm.weight holds",
        {"model.layers.1.input_layernorm.weight": ("F32", np.full(64, np.inf, np.float32))},
    ),
]


@pytest.mark.parametrize(("message", "changes"), READING)
def test_values_that_cannot_be_used_are_refused_when_read(tmp_path: Path, message: str, changes: Tensors) -> None:
    model = make_hf(tmp_path)
    change_tensors(model, changes)
    source = open_model(tmp_path)
    source.layer(0)
    with pytest.raises(ModelFileError, match=message):
        source.layer(1)


@pytest.mark.parametrize("scale", [0.0, 1e-45])
def test_a_scale_without_a_reciprocal_is_refused(tmp_path: Path, scale: float) -> None:
    model = make_hf(tmp_path, linear_class="bitlinear")
    change_tensors(model, {Q + ".weight_scale": ("F32", np.full(1, scale, np.float32))})
    with pytest.raises(ModelFileError, match="cannot be divided by it"):
        open_model(tmp_path).layer(1)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"a"', "\xff\xfe", "{" * 5])
def test_a_damaged_config_is_one_line(tmp_path: Path, text: str) -> None:
    make_hf(tmp_path)
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelFileError, match=r"config\.json: ") as caught:
        open_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_config_for_another_size_is_refused(tmp_path: Path) -> None:
    model = make_hf(tmp_path)
    change_config(model, vocab_size=10**7, num_hidden_layers=4096)
    with pytest.raises(ModelFileError, match=r"embed_tokens\.weight has shape \(300, 64\)"):
        open_model(tmp_path)


def test_a_layer_that_the_config_lacks_is_refused(tmp_path: Path) -> None:
    model = make_hf(tmp_path)
    change_config(model, num_hidden_layers=1)
    with pytest.raises(ModelFileError, match=r"model\.layers\.1\.\S+ has no place"):
        open_model(tmp_path)


def test_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    make_hf(tmp_path, shards=2)
    path = tmp_path / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="model-00002-of-00002"):
        open_model(tmp_path)


def test_one_layer_at_a_time_is_in_memory(tmp_path: Path) -> None:
    make_hf(tmp_path)
    source = open_model(tmp_path)
    first, again = source.layer(0), source.layer(0)
    assert first.q.codes is not again.q.codes
