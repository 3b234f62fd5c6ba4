"""``tritune adapter``: info, convert, combine and diff; and several adapters at once in generate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritune
from command_line import Cli
from tritune.lora.files import detect_format


@pytest.fixture(scope="session")
def second(model: tritune.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of another rank and other targets."""
    made = tritune.Adapter.create(model, tritune.LoRAConfig(rank=2, alpha=2, target_modules=["q_proj", "up_proj"]))
    for name, tensor in made.tensors().items():
        tensor[...] = np.random.default_rng(len(name)).normal(0, 0.3, tensor.shape)
    path = tmp_path_factory.mktemp("adapters") / "second"
    made.save(path)
    return path


def facts(cli: Cli, *arguments: str | Path) -> dict[str, Any]:
    result = cli("adapter", *arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.mark.parametrize("kind", ["peft", "mlx", "gguf"])
def test_info_tells_the_same_of_every_format(kind: str, cli: Cli, tiny: Path, adapter: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("adapter", "convert", adapter, "--to", kind, "-o", out, "-m", tiny).out == f"adapter: {out}\n"
    found = facts(cli, "info", out)
    assert (found["format"], found["base_model"], found["fits_model"]) == (kind, "tiny-model", None)
    assert (found["rank"], found["alpha"], found["scale"], found["layers"]) == (4, 8, 2, [0, 1])
    expected = facts(cli, "info", adapter)
    assert found["parameters"] == expected["parameters"]
    assert found["norms"] == pytest.approx(expected["norms"])
    assert facts(cli, "info", out, "--model", tiny)["fits_model"] is True
    assert found["file_bytes"] >= 4 * found["parameters"]


def test_info_for_people(cli: Cli, adapter: Path, model: tritune.Model) -> None:
    shown = cli("adapter", "info", adapter).out
    loaded = tritune.Adapter.load(adapter, model)
    whole = sum(np.linalg.norm(w.scale * w.b @ w.a) ** 2 for p in loaded.layers for w in p.projections.values()) ** 0.5
    assert f"all {whole:.4g}" in shown
    assert "format      peft" in shown


def test_alphas_and_ranks_that_differ_are_a_range(cli: Cli, model: tritune.Model, tmp_path: Path) -> None:
    config = tritune.LoRAConfig(rank=4, alpha=8, rank_pattern={"q_proj": 2}, alpha_pattern={"v_proj": 1})
    tritune.Adapter.create(model, config).save(tmp_path / "x")
    found = facts(cli, "info", tmp_path / "x")
    assert (found["rank"], found["alpha"], found["scale"]) == ([2, 4], [1, 8], [0.25, 4])


def test_an_adapter_of_another_size_does_not_fit(cli: Cli, adapter: Path, tmp_path: Path) -> None:
    assert "this base has 512" in cli("adapter", "info", adapter, "-m", "built-in").error
    error = cli("adapter", "convert", adapter, "--to", "gguf", "-o", tmp_path / "x").error
    assert "this base has 512 (without --model, the base is the built-in model)" in error
    assert list(tmp_path.iterdir()) == []
    assert cli("adapter", "convert", tmp_path / "nowhere", "-o", tmp_path / "x").error.endswith("found nothing")


def test_hesper_both_ways(cli: Cli, tiny: Path, model: tritune.Model, adapter: Path, tmp_path: Path) -> None:
    config = tritune.LoRAConfig(rank=3, target_modules=["q_proj", "v_proj"])
    made = tritune.Adapter.create(model, config)
    made.save(tmp_path / "qv")
    assert cli("adapter", "convert", tmp_path / "qv", "--to", "hesper", "-o", tmp_path / "h", "-m", tiny).code == 0
    assert cli("adapter", "convert", tmp_path / "h", "-o", tmp_path / "back", "-m", tiny).code == 0
    np.testing.assert_array_equal(tritune.Adapter.load(tmp_path / "back", model).parameters, made.parameters)
    assert "the model is needed" in cli("adapter", "info", tmp_path / "h").error
    error = cli("adapter", "convert", adapter, "--to", "hesper", "-o", tmp_path / "no", "-m", tiny).error
    assert "not saved: Hesper's format holds q_proj and v_proj of every layer" in error
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("kind", ["peft", "gguf", "mlx"])
def test_nothing_that_is_there_is_lost(kind: str, cli: Cli, tiny: Path, adapter: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("adapter", "convert", adapter, "--to", kind, "-o", out, "-m", tiny)
    assert cli(*command).code == 0
    before = {p: p.read_bytes() for p in [out, *out.glob("*")] if p.is_file()}
    assert str(out) in cli(*command).error
    assert {p: p.read_bytes() for p in [out, *out.glob("*")] if p.is_file()} == before
    assert cli(*command, "--overwrite").code == (2 if kind == "mlx" else 0)


def test_combine(cli: Cli, tiny: Path, model: tritune.Model, adapter: Path, second: Path, tmp_path: Path) -> None:
    out = tmp_path / "sum.gguf"
    result = cli("adapter", "combine", f"{adapter}=0.7", f"{second}=-0.3", "-o", out, "--to", "gguf", "-m", tiny)
    assert (result.code, result.out) == (0, f"adapter: {out}\n")
    assert detect_format(out) == "gguf"
    tokens = [5, 9, 60, 3]
    pair = [(tritune.Adapter.load(adapter, model), 0.7), (tritune.Adapter.load(second, model), -0.3)]
    found = model.logits(tokens, tritune.Adapter.load(out, model))
    np.testing.assert_allclose(found, model.logits(tokens, pair), rtol=1e-3, atol=1e-3)
    low = cli(
        "adapter", "combine", adapter, second, "--type", "svd", "--svd-rank", "3", "-o", tmp_path / "low", "-m", tiny
    )
    assert low.code == 0
    assert facts(cli, "info", tmp_path / "low")["rank"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--type", "ties"], "density: ties needs it"),
        (["--density", "0.5"], "density: only ties uses it"),
        (["--type", "linear"], "the adapters have ranks 2, 4 there"),
        (["--type", "mean"], "'mean' is not one of"),
    ],
)
def test_combine_refuses(arguments: list[str], message: str, cli: Cli, tiny: Path, adapter: Path, second: Path) -> None:
    error = cli("adapter", "combine", adapter, second, *arguments, "-o", "never", "-m", tiny).error
    assert message in error
    assert not Path("never").exists()


def test_diff(cli: Cli, adapter: Path, second: Path) -> None:
    same = facts(cli, "diff", adapter, adapter)
    assert same["total"]["relative"] < 1e-6
    assert len(same["modules"]) == 14
    other = facts(cli, "diff", adapter, second)
    assert other["modules"]["model.layers.0.mlp.down_proj"]["relative"] == pytest.approx(1)
    assert 0 < other["total"]["relative"] < 2
    shown = cli("adapter", "diff", adapter, second).out.splitlines()
    assert shown[0].split() == ["module", "relative", "‖first‖", "‖second‖"]
    assert len(shown) == 16
    assert shown[-1].split()[:2] == ["all", f"{other['total']['relative']:.4f}"]


def test_several_adapters_in_generate(cli: Cli, tiny: Path, model: tritune.Model, adapter: Path, second: Path) -> None:
    def answer(*adapters: str) -> str:
        flags = [word for given in adapters for word in ("--adapter", given)]
        shown = cli("generate", "-m", tiny, "--device", "numpy", "-p", "hello", "--max-tokens", "12", *flags)
        assert shown.code == 0, shown.err
        return shown.out.removesuffix("\n")

    pair = [(tritune.Adapter.load(adapter, model), 0.7), (tritune.Adapter.load(second, model), 0.3)]
    expected = model.generate("hello", pair, max_tokens=12)
    assert answer(f"{adapter}=0.7", f"{second}=0.3") == expected
    assert expected not in (answer(str(adapter)), answer(str(second)), answer())
    assert answer(f"{adapter}=1") == answer(str(adapter))
    assert answer(f"{adapter}=0") == answer()


def test_a_name_with_an_equals_sign_is_a_name(cli: Cli, tiny: Path, model: tritune.Model, tmp_path: Path) -> None:
    tritune.Adapter.create(model, tritune.LoRAConfig(rank=1)).save(tmp_path / "a=0.5")
    flags = ("-m", tiny, "--device", "numpy", "-p", "hi", "--max-tokens", "1")
    assert cli("generate", *flags, "-a", tmp_path / "a=0.5").code == 0
    assert cli("generate", *flags, "-a", f"{tmp_path / 'a=0.5'}=2").code == 0


@pytest.mark.parametrize("number", ["x", "", "nan", "inf"])
def test_a_weight_that_is_no_number_is_refused(number: str, cli: Cli, tiny: Path) -> None:
    error = cli("generate", "-m", tiny, "--device", "numpy", "-p", "hi", "-a", f"story={number}").error
    assert f"--adapter story={number}: expected a number after =, found {number!r}" in error
