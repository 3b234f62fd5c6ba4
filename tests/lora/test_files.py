"""The format of an adapter is told by its content, and no content does anything but load or be refused in one line."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_adapters import random_adapter, same, tiny_base
from tritune.errors import AdapterError, ConfigError
from tritune.lora import Adapter, LoRAConfig
from tritune.lora.files import FORMATS, detect_format, read_adapter

BASE = tiny_base(layers=2, hidden=24)
ADAPTER = random_adapter(BASE, LoRAConfig(rank=3, alpha=6, target_modules=["q_proj", "v_proj"]))


@pytest.mark.parametrize("kind", FORMATS)
def test_the_content_tells_the_format_not_the_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.bin.gguf.npz"
    ADAPTER.save(path, kind)
    assert detect_format(path) == kind
    assert same(Adapter.load(path, BASE), ADAPTER)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adapter format 'onnx': expected peft, gguf, mlx, hesper"):
        ADAPTER.save(tmp_path / "x", "onnx")


@pytest.mark.parametrize("kind", ["gguf", "hesper"])
def test_a_file_is_replaced_and_a_directory_is_not(kind: str, tmp_path: Path) -> None:
    ADAPTER.save(tmp_path / "x", kind)
    random_adapter(BASE, ADAPTER.config, seed=1).save(tmp_path / "x", kind)
    assert not same(Adapter.load(tmp_path / "x", BASE), ADAPTER)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(AdapterError, match="folder: cannot save an adapter there: it is a directory"):
        ADAPTER.save(tmp_path / "folder", kind)


@pytest.mark.parametrize("kind", FORMATS)
def test_nan_adapter_saved_as_a_success(kind: str, tmp_path: Path) -> None:
    broken = ADAPTER.copy()
    broken.layers[1].projections["v_proj"].b[0, 0] = np.nan
    with pytest.raises(AdapterError, match=r"not saved: tensor .*layers\.1\.self_attn\.v_proj\.lora_B.* not finite"):
        broken.save(tmp_path / "x", kind)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused_by_what_they_are(tmp_path: Path) -> None:
    ADAPTER.save(tmp_path / "peft")
    for path, message in (
        (tmp_path / "peft" / "adapter_model.safetensors", "a safetensors file alone; expected the directory"),
        (tmp_path / "peft" / "adapter_config.json", "found a file that is none of these"),
    ):
        with pytest.raises(AdapterError, match=message):
            Adapter.load(path, BASE)


@pytest.mark.parametrize("kind", ["peft", "mlx", "gguf"])
def test_an_adapter_is_read_without_its_model(kind: str, tmp_path: Path) -> None:
    base = tiny_base(model_type="bitnet")
    adapter = random_adapter(base, LoRAConfig(rank=4, alpha=8))
    adapter.save(tmp_path / "x", kind)
    found = read_adapter(tmp_path / "x")
    assert same(found, adapter)
    assert found.base_model == "org/tiny"
    for size in ("hidden_size", "intermediate_size", "num_layers", "q_size", "kv_size"):
        assert getattr(found.model_config, size) == getattr(base.config, size)


def test_without_a_model_what_needs_one_says_so(tmp_path: Path) -> None:
    for kind in ("hesper", "gguf"):
        ADAPTER.save(tmp_path / kind, kind)
        with pytest.raises(AdapterError, match="the model is needed"):
            read_adapter(tmp_path / kind)


def test_without_a_model_sizes_must_agree(tmp_path: Path) -> None:
    adapter = random_adapter(BASE, LoRAConfig(rank=4, target_modules=["q_proj"], layers=(0,)))
    adapter.save(tmp_path / "x")
    from tiny_adapters import read_directory, write_directory

    config, tensors = read_directory(tmp_path / "x")
    name = next(iter(tensors)).rpartition(".lora_")[0].replace("layers.0", "layers.{}")
    for layer, message in ((1, "but others say that the size is 24"), (4096, "less than 4096 layers")):
        width = 24 if layer > 1 else 28
        more = {
            f"{name.format(layer)}.lora_A.weight": np.ones((4, width), np.float32),
            f"{name.format(layer)}.lora_B.weight": np.ones((24, 4), np.float32),
        }
        write_directory(tmp_path / "y", config | {"layers_to_transform": None}, tensors | more)
        with pytest.raises(AdapterError, match=message):
            read_adapter(tmp_path / "y")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    for kind in FORMATS:
        ADAPTER.save(folder / kind, kind)
    return folder


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(FORMATS), data=st.data())
def test_a_damaged_file_loads_or_is_refused_in_one_line(kind: str, data: st.DataObject, saved: Path) -> None:
    path = saved / kind
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    whole = {file: file.read_bytes() for file in files}
    file = data.draw(st.sampled_from(files))
    content = bytearray(whole[file])
    for _ in range(data.draw(st.integers(0, 3))):
        first = min(len(content), 400)  # most of them in the header
        at = data.draw(st.one_of(st.integers(0, first - 1), st.integers(0, len(content) - 1)))
        content[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    file.write_bytes(content)
    tracemalloc.start()
    try:
        for load in (lambda: Adapter.load(path, BASE), lambda: read_adapter(path)):
            try:
                load()
            except AdapterError as error:
                assert "\n" not in str(error)
                assert str(path) in str(error)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        for name, original in whole.items():
            name.write_bytes(original)
    assert peak < 20_000_000
