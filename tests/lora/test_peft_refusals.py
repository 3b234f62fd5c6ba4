"""PEFT directories that are wrong: each is refused in one line that names the file and the field or tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_adapters import Files, random_adapter, tiny_base, write_directory
from tritune.errors import AdapterError
from tritune.lora import Adapter

BASE = tiny_base()
PREFIX = "base_model.model.model.layers."
Q_A, Q_B = PREFIX + "1.self_attn.q_proj.lora_A.weight", PREFIX + "1.self_attn.q_proj.lora_B.weight"


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; expected 'LORA'"),
    ({"peft_type": None}, "peft_type is missing"),
    ({"r": None}, "r is missing; expected an integer"),
    ({"r": "4"}, "r is '4'; expected an integer"),
    ({"r": True}, "r is True"),
    ({"r": 0}, "r is 0"),
    ({"r": 10**30}, "r is 1000"),
    ({"lora_alpha": None}, "lora_alpha is missing"),
    ({"lora_alpha": "8"}, "lora_alpha is '8'"),
    ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
    ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
    ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
    ({"lora_alpha": -1}, "lora_alpha is -1; expected a number >= 0"),
    ({"alpha_pattern": {"q_proj": 10**400}}, "alpha_pattern 'q_proj' is 1000"),
    ({"an_unknown\nthing": 1}, r"'an_unknown\\nthing' is 1"),
    ({"lora_dropout": 1}, r"lora_dropout is 1; expected a number in \[0, 1\)"),
    ({"use_rslora": "yes"}, "use_rslora is 'yes'; expected true or false"),
    ({"use_dora": True}, r"use_dora is True; expected null, false or empty \(this is not supported\)"),
    ({"bias": "all"}, "bias is 'all'; expected 'none'"),
    ({"bias": 1}, "bias is 1"),
    ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]; expected null"),
    ({"lora_bias": True}, "lora_bias is True"),
    ({"layer_replication": [[0, 2]]}, "layer_replication is"),
    ({"trainable_token_indices": [1]}, "trainable_token_indices is"),
    ({"target_parameters": ["x"]}, "target_parameters is"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is"),
    ({"an_unknown_thing": 0.5}, "an_unknown_thing is 0.5"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'; expected true, false"),
    ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
    ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
    ({"init_lora_weights": "corda"}, "init_lora_weights is 'corda'"),
    ({"init_lora_weights": "loftq"}, "init_lora_weights is 'loftq'"),
    ({"init_lora_weights": ["x"]}, "init_lora_weights is"),
    ({"base_model_name_or_path": 3}, "base_model_name_or_path is 3; expected a string"),
    ({"target_modules": [1]}, r"target_modules is \[1\]; expected a list of module names"),
    ({"target_modules": {"q_proj": 1}}, "target_modules is"),
    ({"target_modules": ["q_proj", "down_proj", "lm_head"]}, "target_modules promises 'lm_head', which has no tensors"),
    ({"target_modules": ["q_proj", "down_proj", "k_proj"]}, "target_modules promises 'k_proj'"),
    ({"target_modules": "all-linear"}, "target_modules promises 'k_proj'"),
    ({"layers_to_transform": "1"}, "layers_to_transform is '1'"),
    ({"layers_to_transform": [True]}, r"layers_to_transform is \[True\]"),
    ({"layers_to_transform": [1, 7]}, "layers_to_transform promises layer 7, which has no tensors"),
    ({"rank_pattern": []}, r"rank_pattern is \[\]; expected an object"),
    ({"rank_pattern": {"q_proj": 2.5}}, "rank_pattern 'q_proj' is 2.5; expected an integer >= 1"),
    ({"rank_pattern": {"q_proj": 0}}, "rank_pattern 'q_proj' is 0"),
    ({"alpha_pattern": {"q_proj": "1"}}, "alpha_pattern 'q_proj' is '1'; expected a number >= 0"),
    (
        {"alpha_pattern": {"(a+)+q_proj": 1}},
        r"alpha_pattern '\(a\+\)\+q_proj' is a regular expression; expected a module",
    ),
    ({"rank_pattern": {".*": 1}}, r"rank_pattern '\.\*' is a regular expression"),
]


@pytest.mark.parametrize(("change", "message"), FIELDS, ids=[str(change)[:40] for change, _ in FIELDS])
def test_a_wrong_field_is_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path, files: Files) -> None:
    config, tensors = files
    path = write_directory(tmp_path / "x", config | change, tensors)
    refuse(path, rf"x/adapter_config\.json: {message}")


def refuse(path: Path, message: str) -> None:
    """Loading fails with one line that matches."""
    with pytest.raises(AdapterError, match=message) as caught:
        Adapter.load(path, BASE)
    assert "\n" not in str(caught.value)


def test_a_rank_that_the_tensors_do_not_have(tmp_path: Path, files: Files) -> None:
    config, tensors = files
    where = r"lora_A\.weight has shape \[4, 36\]; expected \[8, 36\]: .*adapter_config\.json gives it rank 8"
    refuse(write_directory(tmp_path / "x", config | {"r": 8}, tensors), where)
    refuse(write_directory(tmp_path / "y", config | {"rank_pattern": {"q_proj": 8}}, tensors), where)


def spoil(tensors: dict[str, np.ndarray], name: str, index: tuple[int, int], value: float) -> dict[str, np.ndarray]:
    spoiled = tensors[name].copy()
    spoiled[index] = value
    return tensors | {name: spoiled}


def without(tensors: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in tensors.items() if part not in name}


TENSORS: list[tuple[str, Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], str]] = [
    ("nan", lambda t: spoil(t, Q_B, (23, 3), np.nan), rf"tensor {Q_B} holds a value that is not finite"),
    ("inf", lambda t: spoil(t, Q_A, (0, 0), np.inf), rf"tensor {Q_A} holds a value that is not finite"),
    ("no b", lambda t: without(t, Q_B), rf"tensor {Q_A} lacks its other half, lora_B"),
    ("no a", lambda t: without(t, Q_A), rf"tensor {Q_B} lacks its other half, lora_A"),
    ("layer gone", lambda t: without(t, "layers.2.mlp"), r"promises model\.layers\.2\.mlp\.down_proj, which"),
    ("empty", lambda t: {}, r"no tensors; expected names such as base_model"),
    ("layer too many", lambda t: t | {Q_A.replace(".1.", ".3."): t[Q_A]}, r"no place .*layers\.3\..* layers 0 … 2"),
    ("layer 01", lambda t: t | {Q_A.replace(".1.", ".01."): t[Q_A]}, "no place in the model for tensor .*01"),
    ("other prefix", lambda t: {"x" + k: v for k, v in t.items()}, r"no place in the model for 12 tensors \(first: x"),
    ("bare model", lambda t: {k.replace(".model.", ".", 1): v for k, v in t.items()}, "no place in the model"),
    ("two names", lambda t: t | {Q_A.removeprefix("base_model.model."): t[Q_A]}, "are for the same matrix"),
    ("line break", lambda t: t | {"a\nb": t[Q_A]}, r"'a\\nb'"),
    ("other adapter", lambda t: t | {Q_A.replace(".weight", ".other.weight"): t[Q_A]}, "no place"),
    ("embedding", lambda t: t | {"base_model.model.model.embed_tokens.lora_embedding_A": t[Q_A]}, "LoRA of an emb"),
    ("dora", lambda t: t | {Q_A.replace("lora_A", "lora_magnitude_vector"): t[Q_A]}, "DoRA is not supported"),
    ("bias", lambda t: t | {Q_B.replace("weight", "bias"): t[Q_A]}, "biases are not supported"),
    ("head", lambda t: t | {"base_model.model.lm_head.lora_A.weight": t[Q_A]}, "LoRA of the output head"),
    ("one dim", lambda t: t | {Q_A: t[Q_A].ravel()}, r"has shape \[144\]; expected \[4, 36\]$"),
    ("other hidden", lambda t: t | {Q_A: t[Q_A][:, :32]}, r"made for hidden 32, this base has 36"),
    ("other heads", lambda t: t | {Q_B: t[Q_B][:16]}, r"\[16, 4\]; .*: made for heads × head size 16, this"),
    ("transposed", lambda t: t | {Q_A: t[Q_A].T}, r"has shape \[36, 4\]; expected \[4, 36\]: made for hidden 4"),
    ("half rank", lambda t: t | {Q_B: t[Q_B][:, :2]}, r"has shape \[24, 2\]; expected \[24, 4\]: .* gives it rank 4"),
    ("f64", lambda t: t | {Q_A: t[Q_A].astype(np.float64)}, "has dtype F64; expected F32, F16, BF16"),
    ("i32", lambda t: t | {Q_A: t[Q_A].astype(np.int32)}, "has dtype I32"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in TENSORS], ids=[case[0] for case in TENSORS])
def test_wrong_tensors_are_refused(
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], message: str, tmp_path: Path, files: Files
) -> None:
    config, tensors = files
    changed = {name: np.ascontiguousarray(tensor) for name, tensor in change(tensors).items()}
    path = write_directory(tmp_path / "x", config, changed)
    refuse(path, message)
    refuse(path, r"x/adapter_(model\.safetensors|config\.json): ")


def test_damaged_and_missing_files(tmp_path: Path, files: Files) -> None:
    config, tensors = files
    refuse(tmp_path / "nowhere", r"nowhere: expected an adapter's directory with adapter_config\.json, found nothing")
    (tmp_path / "file").write_text("x")
    refuse(tmp_path / "file", r"file: expected an adapter's directory .* found a file")
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", r"empty/adapter_config\.json: no such file")

    path = write_directory(tmp_path / "x", config, tensors)
    weights, whole = path / "adapter_model.safetensors", (path / "adapter_model.safetensors").read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        weights.write_bytes(whole[:size])
        refuse(path, r"x/adapter_model\.safetensors: not a usable safetensors file")
    weights.write_bytes((1 << 62).to_bytes(8, "little") + whole[8:])
    refuse(path, r"x/adapter_model\.safetensors: not a usable safetensors file")
    weights.unlink()
    refuse(path, r"x/adapter_model\.safetensors: no such file")
    (path / "adapter_model.bin").write_bytes(b"x")
    refuse(path, r"x/adapter_model\.bin: a pickle, .* is not read; expected adapter_model\.safetensors")

    weights.write_bytes(whole)
    Adapter.load(path, BASE)
    for text in ("", "{", "[]", '"x"', "\xff", "[" * 100_000):
        (path / "adapter_config.json").write_bytes(text.encode("latin-1"))
        refuse(path, r"x/adapter_config\.json: ")


def test_a_name_that_the_system_refuses() -> None:
    refuse(Path("x" * 5000), "x: cannot be read: File name too long")


def test_an_adapter_of_another_size_is_said_plainly(tmp_path: Path) -> None:
    random_adapter(tiny_base(hidden=48)).save(tmp_path / "wide")
    refuse(tmp_path / "wide", "made for hidden 48, this base has 36")
    random_adapter(tiny_base(layers=5)).save(tmp_path / "deep")
    refuse(tmp_path / "deep", "layers 0 … 2")
    random_adapter(tiny_base(layers=2)).save(tmp_path / "shallow")
    refuse(tmp_path / "shallow", r"promises model\.layers\.2\.self_attn\.q_proj, which has no tensors")
