"""Wrong files and missing devices: one clear line, an exit code, nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command_line import Cli, Result, finish, start
from tiny_gguf import make_gguf
from tiny_text import make_text_model, write_rows
from tritune.backends import open_backend
from tritune.backends.cpu import native_problem

# Neither Vulkan nor OpenGL, and no words from the libraries that look for them.
NO_DRIVER = {
    "VK_DRIVER_FILES": "/nowhere.json",
    "VK_ICD_FILENAMES": "/nowhere.json",
    "LIBGL_DRIVERS_PATH": "/nowhere",
    "EGL_LOG_LEVEL": "fatal",
}


@pytest.fixture(params=["generate", "chat", "train", "info"])
def use(request: pytest.FixtureRequest, cli: Cli, rows: Path, tmp_path: Path) -> Cli:
    """Each command that takes a model, used with a model and maybe an adapter."""
    flags = {
        "generate": ["--device", "numpy", "-p", "hello", "--max-tokens", "2"],
        "chat": ["--device", "numpy"],
        "train": ["--device", "numpy", "-d", rows, "-o", tmp_path / "out", "--max-steps", "1"],
        "info": [],
    }[request.param]

    def run(model: Path, *more: str | Path) -> Result:
        result = cli(request.param, "--model", model, *flags, *more, stdin=b"hello\n")
        assert not (tmp_path / "out").exists()
        return result

    return run


def test_truncated_weights(use: Cli, tiny: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(tiny, tmp_path / "broken")
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:-100])
    assert str(broken / "model.safetensors") in use(broken).error


def test_gguf_of_an_unknown_type(use: Cli, tmp_path: Path) -> None:
    file = tmp_path / "odd.gguf"
    make_gguf(file)
    data = file.read_bytes()
    file.write_bytes(data.replace(b"bitnet-b1.58", b"bitmap-b1.58"))
    error = use(file).error
    assert str(file) in error
    assert "bitmap-b1.58" in error


def test_missing_and_empty_models(use: Cli, tmp_path: Path) -> None:
    assert "nowhere" in use(tmp_path / "nowhere").error
    (tmp_path / "empty").mkdir()
    assert "config.json" in use(tmp_path / "empty").error


def test_adapter_of_another_size(use: Cli, adapter: Path, tmp_path: Path) -> None:
    other = make_text_model(tmp_path / "other", layers=2)
    config = json.loads((other / "config.json").read_text())
    assert config["hidden_size"] == 32
    shutil.rmtree(other)
    from tiny_models import make_hf
    from tiny_tokenizer import write_directory

    write_directory(other, kind="chatml")
    make_hf(other, vocab=420, hidden=64)
    error = use(other, "--adapter", adapter).error
    assert "hidden 32" in error
    assert "64" in error


@pytest.mark.parametrize("arguments", [["generate", "-p", "hello", "--max-tokens", "2"], ["train"], ["chat"]])
def test_no_driver_is_one_line_that_says_what_to_install(arguments: list[str], tiny: Path, tmp_path: Path) -> None:
    more = ["-d", write_rows(tmp_path / "r.jsonl"), "-o", tmp_path / "out"] if arguments == ["train"] else []
    result = finish(start(*arguments, "-m", tiny, "--device", "webgpu", *more, **NO_DRIVER))
    assert result.code == 3
    assert "Vulkan" in result.error
    assert "install" in result.error
    assert not (tmp_path / "out").exists()


def description() -> str:
    """The device that takes over: native kernels, or NumPy where they were not built."""
    backend = open_backend("cpu")
    backend.close()
    return backend.description


def test_no_driver_and_auto_takes_the_cpu(tiny: Path) -> None:
    arguments = ["generate", "-m", tiny, "-p", "hello", "--max-tokens", "3", "-v", "--temp", "0"]
    result = finish(start(*arguments, **NO_DRIVER))
    assert result.code == 0
    assert f"device: {description()}" in result.err
    assert result.out.strip()


def test_looking_for_devices_says_nothing_of_displays() -> None:
    result = finish(start("info", XDG_RUNTIME_DIR=None))
    assert (result.code, result.err) == (0, "")


def test_no_driver_is_shown_by_info() -> None:
    result = finish(start("info", **NO_DRIVER))
    assert result.code == 0
    assert f"auto takes {'numpy' if native_problem() else 'cpu'}" in result.out
    assert "mesa-vulkan-drivers" in result.out
