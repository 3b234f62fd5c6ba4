"""PEFT directories: what is written is read back, and what others write is read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tiny_adapters import Files, random_adapter, read_directory, same, tiny_base, write_directory
from tiny_models import from_bf16, to_bf16, write_safetensors
from tritune.lora import Adapter, LoRAConfig
from tritune.lora.config import Target, resolve_targets

BASE = tiny_base()
PREFIX = "base_model.model.model.layers."

CONFIGS = {
    "all": LoRAConfig(rank=4, alpha=8),
    "names": LoRAConfig(rank=1, alpha=0.5, target_modules=["v_proj", "down_proj"], dropout=0.1),
    "rslora": LoRAConfig(rank=8, alpha=8, target_modules=["q_proj"], rslora=True),
    "layers": LoRAConfig(rank=4, alpha=8, target_modules=["q_proj", "up_proj"], layers=(0, 2)),
    "uneven": LoRAConfig(rank=4, alpha=8, target_modules=r"model\.layers\.(0\.self_attn\.[qk]|2\.mlp\.up)_proj"),
    "patterns": LoRAConfig(
        rank=4,
        alpha=8,
        rank_pattern={r"layers\.1\..*": 2, "q_proj": 6},
        alpha_pattern={r".*\.2\.mlp.*": 3.5, "k_proj": 1},
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_saved_is_loaded(name: str, tmp_path: Path) -> None:
    adapter = random_adapter(BASE, CONFIGS[name])
    adapter.save(tmp_path / "new" / "adapter")
    loaded = Adapter.load(tmp_path / "new" / "adapter", BASE)
    assert same(loaded, adapter)
    assert (loaded.config.rank, loaded.config.alpha) == (adapter.config.rank, adapter.config.alpha)
    assert (loaded.config.dropout, loaded.config.rslora) == (adapter.config.dropout, adapter.config.rslora)
    # The settings that a loaded adapter carries make the same targets again, so training can start from it.
    assert resolve_targets(loaded.config, BASE.config) == adapter.targets
    loaded.save(tmp_path / "again")
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "new" / "adapter" / file).read_bytes()


def test_the_config_says_what_the_format_asks_for(tmp_path: Path) -> None:
    config = LoRAConfig(rank=4, alpha=8, target_modules=["v_proj", "q_proj"], layers=(1,), rank_pattern={"v_proj": 2})
    random_adapter(BASE, config).save(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert json.loads((tmp_path / "adapter_config.json").read_text()) == {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "org/tiny",
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "layers_to_transform": [1],
        "layers_pattern": "layers",
        "rank_pattern": {"v_proj": 2},
        "alpha_pattern": {},
        "inference_mode": True,
        "peft_version": "0.21.0",
    }
    _, tensors = read_directory(tmp_path)
    assert {(t.dtype.name, t.flags.c_contiguous) for t in tensors.values()} == {("float32", True)}
    assert tensors[PREFIX + "1.self_attn.v_proj.lora_B.weight"].shape == (8, 2)


def test_paths_where_names_cannot_say_it(tmp_path: Path) -> None:
    random_adapter(BASE, CONFIGS["uneven"]).save(tmp_path)
    config, _ = read_directory(tmp_path)
    assert config["target_modules"] == [
        "model.layers.0.self_attn.k_proj",
        "model.layers.0.self_attn.q_proj",
        "model.layers.2.mlp.up_proj",
    ]
    assert config["layers_to_transform"] is None and config["layers_pattern"] is None


def test_scale_of_what_a_file_says(tmp_path: Path, files: Files) -> None:
    config, tensors = files
    config["alpha_pattern"] = {r"model\.layers\.1\.self_attn\.q_proj": 6, "self_attn.q_proj": 2}
    loaded = Adapter.load(write_directory(tmp_path / "a", config, tensors), BASE)
    assert [layer.projections["q_proj"].scale for layer in loaded.layers] == [0.5, 1.5, 0.5]
    assert loaded.targets[0] == Target(0, "q_proj", 4, 2.0, 0.5)
    config["use_rslora"] = True
    loaded = Adapter.load(write_directory(tmp_path / "b", config, tensors), BASE)
    assert [layer.projections["q_proj"].scale for layer in loaded.layers] == [1, 3, 1]
    assert loaded.layers[0].projections["down_proj"].scale == 4


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_float_types_expand_exactly(dtype: str, tmp_path: Path, files: Files) -> None:
    config, tensors = files
    stored = {
        name: to_bf16(t) if dtype == "BF16" else t.astype("f2" if dtype == "F16" else "f4")
        for name, t in tensors.items()
    }
    path = write_directory(tmp_path / "x", config, tensors)
    write_safetensors(path / "adapter_model.safetensors", {name: (dtype, values) for name, values in stored.items()})
    loaded = Adapter.load(path, BASE).tensors()
    for name, values in stored.items():
        wanted = from_bf16(values) if dtype == "BF16" else values.astype(np.float32)
        np.testing.assert_array_equal(loaded[name], wanted)
        assert loaded[name].dtype == np.float32


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.removeprefix("base_model.model."),
        lambda name: name.replace(".weight", ".default.weight"),
        lambda name: name.removeprefix("base_model.model.").replace(".weight", ".default.weight"),
    ],
)
def test_names_of_other_writers(rename: Callable[[str], str], tmp_path: Path, files: Files) -> None:
    config, tensors = files
    path = write_directory(tmp_path / "x", config, {rename(name): tensor for name, tensor in tensors.items()})
    loaded = Adapter.load(path, BASE).tensors()
    assert all(np.array_equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_what_does_not_change_the_result_is_accepted(tmp_path: Path, files: Files) -> None:
    config, tensors = files
    config |= {
        "target_modules": r".*\.(q|down)_proj",  # never run; the tensors say what is adapted
        "auto_mapping": {"base_model_class": "X", "unsloth_fixed": True},
        "eva_config": {"rho": 2.0},
        "loftq_config": {},
        "init_lora_weights": "gaussian",
        "megatron_core": "megatron.core",
        "peft_version": "9.9",
        "qalora_group_size": 16,
        "revision": "main",
        "some_new_thing": False,
        "another_new_thing": None,
        "r": 4.0,
    }
    path = write_directory(tmp_path / "x", config, tensors)
    (path / "adapter_config.json").write_text("\ufeff" + json.dumps(config), encoding="utf-8")
    assert Adapter.load(path, BASE).config.target_modules == ("down_proj", "q_proj")


def test_excluded_modules_are_not_promised(tmp_path: Path, files: Files) -> None:
    config, tensors = files
    config |= {"target_modules": ["q_proj", "k_proj", "down_proj"], "exclude_modules": ["k_proj"]}
    config["target_modules"].remove("k_proj")
    kept = {name: tensor for name, tensor in tensors.items() if ".1.self_attn" not in name}
    config["exclude_modules"] = ["layers.1.self_attn.q_proj"]
    loaded = Adapter.load(write_directory(tmp_path / "x", config, kept), BASE)
    assert (1, "q_proj") not in {(t.layer, t.projection) for t in loaded.targets}
    assert resolve_targets(loaded.config, BASE.config) == loaded.targets


def test_another_base_is_a_warning(tmp_path: Path, files: Files) -> None:
    config, tensors = files
    config["base_model_name_or_path"] = "/models/other"
    path = write_directory(tmp_path / "x", config, tensors)
    with pytest.warns(UserWarning, match=r"adapter_config\.json: made for /models/other, loaded on org/tiny") as caught:
        assert Adapter.load(path, BASE).base_model == "/models/other"
    assert [w.filename for w in caught] == [__file__]
    config["base_model_name_or_path"] = "/models/tiny/"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Adapter.load(write_directory(tmp_path / "y", config, tensors), BASE)
        config["base_model_name_or_path"] = None
        assert Adapter.load(write_directory(tmp_path / "z", config, tensors), BASE).base_model == "org/tiny"
