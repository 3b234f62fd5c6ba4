"""``tritune info``: devices, a model's facts, an adapter's facts, for people and as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tritune
from command_line import Cli
from tiny_models import make_hf
from tritune.assets import BUILTIN_MODEL
from tritune.backends.webgpu.choices import head_class
from tritune.backends.webgpu.device import AdapterInfo
from tritune.backends.webgpu.tuning import tune
from tritune.cli import facts

SOFTWARE = AdapterInfo(
    index=0, name="llvmpipe", kind="software", backend="Vulkan", driver="Mesa", software=True,
    features=frozenset({"subgroup"}),
    limits={"max-buffer-size": 1 << 31, "max-storage-buffer-binding-size": 1 << 27},
)  # fmt: skip


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[AdapterInfo]:
    """The adapters of this machine, to be filled in."""
    listed: list[AdapterInfo] = []
    monkeypatch.setattr(facts, "list_adapters", lambda: listed)
    monkeypatch.setattr(facts, "adapters_problem", lambda: "no Vulkan driver was found: install one")
    return listed


@pytest.fixture(params=[None, "the native CPU kernels are missing"])
def problem(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What the native kernels lack, if anything."""
    monkeypatch.setattr(facts, "native_problem", lambda: request.param)
    monkeypatch.setattr(facts, "supported_isas", lambda: ["avx2", "portable"])
    monkeypatch.setattr(facts, "physical_cores", lambda: 6)
    return request.param


def read_json(cli: Cli, *flags: str | Path) -> dict[str, Any]:
    result = cli("info", "--json", *flags)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_no_gpu_says_how_to_get_one(cli: Cli, gpus: list[AdapterInfo], problem: str | None) -> None:
    device = "numpy" if problem else "cpu"
    shown = cli("info").out
    assert f"auto takes {device}: there is no GPU for WebGPU (no Vulkan driver was found: install one)" in shown
    assert (f"through NumPy, slowly: {problem}" if problem else "native kernels for avx2, 6 threads") in shown
    assert read_json(cli)["devices"] == {
        "adapters": [],
        "cpu": {"problem": problem, "instruction_sets": [] if problem else ["avx2", "portable"], "threads": 6},
        "auto": device,
        "why": "there is no GPU for WebGPU (no Vulkan driver was found: install one)",
    }


def test_software_is_listed_and_never_taken_by_itself(cli: Cli, gpus: list[AdapterInfo], problem: str | None) -> None:
    gpus.append(SOFTWARE)
    devices = read_json(cli)["devices"]
    assert devices["auto"] == ("numpy" if problem else "cpu")
    assert "software" in devices["why"]
    assert devices["adapters"][0]["device"] == "webgpu:0"
    assert "webgpu:0  llvmpipe (software, Vulkan)" in cli("info").out


def test_the_best_gpu_is_taken(cli: Cli, gpus: list[AdapterInfo]) -> None:
    gpus += [replace(SOFTWARE, name="Big GPU", kind="discrete", software=False), replace(SOFTWARE, index=1)]
    assert "auto takes webgpu:0: the best hardware GPU, Big GPU" in cli("info").out
    assert "largest buffer 2.0 GiB, largest binding 128.0 MiB, subgroups yes, f16 no" in cli("info").out


def test_what_is_said_of_auto_is_what_auto_does(cli: Cli) -> None:
    from tritune.backends import open_backend

    backend = open_backend("auto")
    name = backend.name
    backend.close()
    assert read_json(cli)["devices"]["auto"].partition(":")[0] == name


def test_facts_of_a_model(cli: Cli, gpus: list[AdapterInfo], tiny: Path) -> None:
    shown = read_json(cli, "--model", tiny)["model"]
    vocab = shown["vocab_size"]
    per_layer = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32
    assert shown["ternary_parameters"] == 2 * per_layer
    assert shown["other_parameters"] == vocab * 32 + 2 * (32 + 32 + 32 + 48) + 32
    assert (shown["layers"], shown["heads"], shown["kv_heads"], shown["head_dim"]) == (2, 2, 1, 16)
    assert shown["file_bytes"] == (tiny / "model.safetensors").stat().st_size
    assert (shown["context"], shown["name"]) == (256, "tiny-model")
    assert list(shown["end_tokens"].values()) == ["<|im_end|>"]
    assert shown["chat_template"] == "chat template of the model"
    text = cli("info", "-m", tiny, "--chat-template", "plain").out
    assert f"{2 * per_layer:,}" in text
    assert "built-in template 'plain'" in text


def test_a_head_of_its_own_counts(cli: Cli, gpus: list[AdapterInfo], tiny: Path, tmp_path: Path) -> None:
    for file in tiny.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    model = make_hf(tmp_path, tie=False)
    shown = read_json(cli, "-m", tmp_path)["model"]
    matrices = sum(values.size for name, values in model.floats.items())
    assert shown["other_parameters"] == matrices


def test_facts_of_the_built_in_model(cli: Cli, gpus: list[AdapterInfo]) -> None:
    shown = read_json(cli, "--model", "built-in")["model"]
    assert shown["path"] == str(BUILTIN_MODEL)
    assert round((shown["ternary_parameters"] + shown["other_parameters"]) / 1e6) == 45


def test_facts_of_an_adapter(cli: Cli, gpus: list[AdapterInfo], tiny: Path, adapter: Path, model: Any) -> None:
    alone = read_json(cli, "--adapter", adapter)["adapter"]
    loaded = tritune.Adapter.load(adapter, model)
    assert (alone["rank"], alone["alpha"], alone["base_model"]) == (4, 8, "tiny-model")
    assert alone["parameters"] == loaded.num_parameters
    assert alone["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert alone["layers"] == [0, 1]
    assert alone["fits_model"] is None
    assert read_json(cli, "-m", tiny, "-a", adapter)["adapter"]["fits_model"] is True
    assert "rank" in cli("info", "-a", adapter).out


def test_adapter_of_another_size_does_not_fit(cli: Cli, gpus: list[AdapterInfo], adapter: Path) -> None:
    error = cli("info", "--model", "built-in", "--adapter", adapter).error
    assert "32" in error
    assert "512" in error


@pytest.mark.parametrize("flag", ["--model", "--adapter"])
def test_what_is_not_there_is_one_line(flag: str, cli: Cli, gpus: list[AdapterInfo]) -> None:
    assert "nowhere" in cli("info", flag, "nowhere").error


def quick(*args: Any, **kwargs: Any) -> Any:
    return tune(*args, **kwargs, names=[head_class(1)], seconds=1)


@pytest.fixture
def tunable(webgpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of the test's own, and a run that is short."""
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path))
    monkeypatch.setattr("tritune.cli.tuning.tune", quick)
    return tmp_path


def test_tune_keeps_what_it_chose_and_info_says_that_it_is_in_use(cli: Cli, tunable: Path) -> None:
    assert "tuning: none (tritune info --tune makes one)" in cli("info").out
    result = cli("info", "--tune", "--device", "webgpu")
    assert result.code == 0, result.err
    [file] = tunable.rglob("*.json")
    assert f"kept in {file}" in result.out
    assert "head, 1 to 2 rows" in result.out
    assert re.search(r"no time was left for these, which keep their defaults: .*head, 3 to 16 rows;", result.out)
    assert f"tuning: {file}" in cli("info").out
    shown = read_json(cli, "--tune")["tuning"]
    assert [row["name"] for row in shown["classes"]] == ["head, 1 to 2 rows"]
    file.write_text("{")
    assert "this tuning is ignored: not JSON" in cli("info").out


def test_an_interrupted_tuning_run_writes_nothing(cli: Cli, tunable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tritune.cli.tuning._tell", interrupt)
    assert cli("info", "--tune").code == 130
    assert [path for path in tunable.rglob("*") if path.is_file()] == []


def test_tune_is_for_gpus(cli: Cli, gpus: list[AdapterInfo]) -> None:
    assert "cpu" in cli("info", "--tune", "--device", "cpu").error
    assert "--tune" in cli("info", "--device", "webgpu").error
