"""mlx-lm's adapters: the numbers that mlx-lm multiplies, its config, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tiny_adapters import Base, random_adapter, same, tiny_base
from tritune.errors import AdapterError
from tritune.lora import Adapter, LoRAConfig

BASE = tiny_base()
Files = tuple[dict[str, Any], dict[str, np.ndarray]]


def read(path: Path) -> Files:
    return json.loads((path / "adapter_config.json").read_text()), load_file(path / "adapters.safetensors")


def write(path: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, path / "adapters.safetensors")
    return path


def assert_computed_the_same(config: dict[str, Any], tensors: dict[str, np.ndarray], adapter: Adapter) -> None:
    """y = scale * ((x @ lora_a) @ lora_b), as LoRALinear has it."""
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    for target in adapter.targets:
        weight = adapter.layers[target.layer].projections[target.projection]
        holder = "mlp" if target.projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        name = f"model.layers.{target.layer}.{holder}.{target.projection}"
        rows = x[:, : weight.in_dim]
        found = config["lora_parameters"]["scale"] * ((rows @ tensors[name + ".lora_a"]) @ tensors[name + ".lora_b"])
        np.testing.assert_allclose(found, weight.scale * (rows @ weight.a.T) @ weight.b.T, rtol=1e-4, atol=1e-4)


CONFIGS = {
    "all": LoRAConfig(rank=4, alpha=8, dropout=0.1),
    "last layer": LoRAConfig(rank=2, alpha=3, layers=(2,), target_modules=["q_proj", "up_proj"]),
    "rslora": LoRAConfig(rank=4, alpha=8, rslora=True),
    "alphas": LoRAConfig(rank=4, alpha=8, alpha_pattern={"k_proj": 3, "v_proj": 0}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_raw_alpha_used_as_scale(name: str, tmp_path: Path) -> None:
    adapter = random_adapter(BASE, CONFIGS[name])
    adapter.save(tmp_path / "mlx", "mlx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlx"]
    config, tensors = read(tmp_path / "mlx")
    assert_computed_the_same(config, tensors, adapter)
    loaded = Adapter.load(tmp_path / "mlx", BASE)
    assert_computed_the_same(config, tensors, loaded)
    assert loaded.config.dropout == adapter.config.dropout
    if name in ("all", "last layer"):
        assert same(loaded, adapter)


def test_the_config_is_that_of_mlx_lm(tmp_path: Path) -> None:
    random_adapter(BASE, CONFIGS["last layer"]).save(tmp_path / "mlx", "mlx")
    config, tensors = read(tmp_path / "mlx")
    assert config == {
        "fine_tune_type": "lora",
        "model": "org/tiny",
        "num_layers": 1,
        "lora_parameters": {"rank": 2, "dropout": 0.0, "scale": 1.5, "keys": ["self_attn.q_proj", "mlp.up_proj"]},
    }
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "model.layers.2.self_attn.q_proj.lora_a": (36, 2),
        "model.layers.2.self_attn.q_proj.lora_b": (2, 24),
        "model.layers.2.mlp.up_proj.lora_a": (36, 2),
        "model.layers.2.mlp.up_proj.lora_b": (2, 48),
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LoRAConfig(rank=4, rank_pattern={"q_proj": 2}), "one rank for all modules, the adapter has 2, 4"),
        (LoRAConfig(rank=4, layers=(0, 1)), "in each of a model's last layers"),
        (LoRAConfig(rank=4, target_modules=r".*(1\.self_attn\.q|2\.mlp\.up)_proj"), "the same modules in each"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(config: LoRAConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="not saved: mlx-lm's format") as caught:
        random_adapter(BASE, config).save(tmp_path / "mlx", "mlx")
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    random_adapter(BASE).save(tmp_path / "x")
    before = {p.name: p.read_bytes() for p in (tmp_path / "x").iterdir()}
    with pytest.raises(AdapterError, match="x: cannot be written: it is there already"):
        random_adapter(BASE).save(tmp_path / "x", "mlx")
    assert {p.name: p.read_bytes() for p in (tmp_path / "x").iterdir()} == before
    (tmp_path / "empty").mkdir()
    random_adapter(BASE).save(tmp_path / "empty", "mlx")
    assert same(Adapter.load(tmp_path / "empty", BASE), random_adapter(BASE))


@pytest.fixture
def good(tmp_path: Path) -> Files:
    random_adapter(BASE, LoRAConfig(rank=4, alpha=8, layers=(1, 2))).save(tmp_path / "good", "mlx")
    return read(tmp_path / "good")


def test_a_file_with_all_settings_of_a_run_is_read(good: Files, tmp_path: Path) -> None:
    config, tensors = good
    more = {"batch_size": 4, "lr_schedule": None, "adapter_path": "adapters", "seed": 0, "train": True}
    parameters = {name: value for name, value in config["lora_parameters"].items() if name != "keys"}
    path = write(tmp_path / "x", config | more | {"lora_parameters": parameters}, tensors)
    assert same(Adapter.load(path, BASE), random_adapter(BASE, LoRAConfig(rank=4, alpha=8, layers=(1, 2))))


@pytest.mark.parametrize("count", [-1, 0, 3, 99])
def test_num_layers_counts_from_the_last(count: int, good: Files, tmp_path: Path) -> None:
    config, tensors = good
    path = write(tmp_path / "x", config | {"num_layers": count}, tensors)
    with pytest.raises(AdapterError, match=r"promise model\.layers\.0\.self_attn\.q_proj, which has no tensors"):
        Adapter.load(path, BASE)
    Adapter.load(write(tmp_path / "y", config | {"num_layers": 1}, tensors), BASE)


Q_A, Q_B = (f"model.layers.1.self_attn.q_proj.lora_{m}" for m in "ab")
Change = Callable[[dict[str, Any], dict[str, np.ndarray]], Files]
WRONG: list[tuple[Change, str]] = [
    (lambda c, t: (c | {"fine_tune_type": "dora"}, t), "fine_tune_type is 'dora'; expected 'lora'"),
    (lambda c, t: (c | {"fine_tune_type": "full"}, t), "fine_tune_type is 'full'"),
    (lambda c, t: ({"fine_tune_type": "lora"}, t), "lora_parameters is missing"),
    (lambda c, t: (c | {"lora_parameters": {"scale": 1.0}}, t), "rank is missing"),
    (lambda c, t: (c | {"lora_parameters": {"rank": 4}}, t), "scale is missing"),
    (lambda c, t: (c | {"lora_parameters": {"rank": 4, "scale": -1}}, t), "scale is -1; expected a number >= 0"),
    (lambda c, t: (c | {"lora_parameters": {"rank": 4, "scale": 1, "alpha": 16}}, t), "alpha is 16; expected none"),
    (lambda c, t: (c | {"lora_parameters": {"rank": 4, "scale": 1, "dropout": 1}}, t), "dropout is 1"),
    (lambda c, t: (c | {"lora_parameters": {"rank": 4, "scale": 1, "keys": "q"}}, t), "keys is 'q'; expected a list"),
    (lambda c, t: (c | {"lora_parameters": {"rank": 8, "scale": 1}}, t), "expected [36, 8]"),
    (lambda c, t: (c | {"num_layers": "2"}, t), "num_layers is '2'; expected an integer"),
    (lambda c, t: (c, t | {Q_A: t[Q_A].T.copy()}), "has shape [4, 36]; expected [36, 4]: made for hidden 4"),
    (lambda c, t: (c, t | {Q_A: t[Q_A][:32]}), "made for hidden 32, this base has 36"),
    (lambda c, t: (c, {n: v for n, v in t.items() if n != Q_A}), f"tensor {Q_B} lacks its other half, lora_a"),
    (lambda c, t: (c, t | {"model.layers.3.mlp.up_proj.lora_a": t[Q_A]}), "layers 0 … 2"),
    (lambda c, t: (c, t | {"lm_head.lora_a": t[Q_A]}), "LoRA of the output head is not supported"),
    (lambda c, t: (c, t | {Q_A: t[Q_A].astype(np.int32)}), "has dtype I32; expected F32, F16, BF16"),
    (lambda c, t: (c, t | {Q_A: t[Q_A] * np.inf}), "not finite"),
    (lambda c, t: (c, {}), "no tensors; expected names such as model.layers.0.self_attn.q_proj.lora_a"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_wrong_files_are_refused_in_one_line(change: Change, message: str, good: Files, tmp_path: Path) -> None:
    path = write(tmp_path / "x", *change(*good))
    with pytest.raises(AdapterError) as caught:
        Adapter.load(path, BASE)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_another_base_is_a_warning(good: Files, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="made for org/tiny, loaded on org/other"):
        Adapter.load(tmp_path / "good", Base(BASE.config, "org/other"))
