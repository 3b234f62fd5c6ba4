"""Safetensors files: what is read, how each kind of damage is refused, and mutated files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_models import Tensors, to_bf16, write_safetensors, write_shards
from tritune.errors import ModelFileError
from tritune.formats.safetensors import SafetensorsFile, open_safetensors_model

TENSORS: Tensors = {
    "odd": ("U8", np.arange(3, dtype=np.uint8)),  # puts the next ones at odd bytes
    "half": ("F16", np.array([[1.5, -2.0]], dtype=np.float16)),
    "brain": ("BF16", to_bf16(np.array([[1.0, -3.0], [0.5, 1e-8]]))),
    "single": ("F32", np.array([7.25], dtype=np.float32)),
    "scalar": ("F32", np.array(2.0, dtype=np.float32)),
    "empty": ("F32", np.zeros((0, 4), dtype=np.float32)),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "model.safetensors", TENSORS)
    return tmp_path / "model.safetensors"


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of a file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        SafetensorsFile(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


def test_every_tensor_is_read_as_stored(path: Path) -> None:
    file = SafetensorsFile(path)
    assert list(file.infos) == list(TENSORS)
    assert file.metadata == {"format": "pt"}
    for name, (dtype, array) in TENSORS.items():
        assert file.infos[name].dtype == dtype
        read = file.read(name)
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read, array)


def test_bf16_comes_as_raw_bits(path: Path) -> None:
    read = SafetensorsFile(path).read("brain")
    assert read.dtype == np.uint16
    assert read[0].tolist() == [0x3F80, 0xC040]


def test_a_dtype_that_numpy_lacks_is_refused_by_name(path: Path) -> None:
    rewrite(path, lambda header: header["odd"].update(dtype="F8_E4M3"))
    with pytest.raises(ModelFileError, match="tensor odd has dtype F8_E4M3"):
        SafetensorsFile(path).read("odd")


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1])
def test_truncated_files_are_refused(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    assert "not a usable safetensors file" in refusal(path)


@pytest.mark.parametrize(
    "start",
    [
        (1 << 62).to_bytes(8, "little"),  # a header larger than any file
        (10_000).to_bytes(8, "little"),  # larger than this file
        (2).to_bytes(8, "little"),  # cut
        b"\x80\x02}q\x00.\0\0",  # a pickle
    ],
)
def test_bad_headers_are_refused(path: Path, start: bytes) -> None:
    path.write_bytes(start + path.read_bytes()[8:])
    refusal(path)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("half", {"data_offsets": [3, 6]}),  # too short for its shape
        ("half", {"data_offsets": [0, 4]}),  # overlaps
        ("half", {"data_offsets": [7, 3]}),  # backwards
        ("half", {"data_offsets": [3, 1 << 60]}),
        ("half", {"shape": [1 << 40, 1 << 40]}),
        ("half", {"shape": [-1, -2]}),
        ("half", {"shape": "2"}),
        ("half", {"dtype": "F17"}),
    ],
)
def test_wrong_entries_are_refused(path: Path, name: str, entry: dict[str, Any]) -> None:
    rewrite(path, lambda header: header[name].update(entry))
    refusal(path)


def test_a_hidden_duplicate_key_is_refused(path: Path) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length].rstrip()
    text = text[:-1] + b', "single": {"dtype": "F32", "shape": [9], "data_offsets": [15, 19]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    refusal(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.safetensors")


def test_shards_are_one_model(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, 3)
    model = open_safetensors_model(tmp_path)
    assert set(model.names()) == set(TENSORS)
    for name, (_, array) in TENSORS.items():
        np.testing.assert_array_equal(model.read(name), array)
    with pytest.raises(ModelFileError, match="tensor nothing is missing"):
        model.read("nothing")


@pytest.mark.parametrize(
    "name",
    ["../model.safetensors", "/tmp/model.safetensors", "a\\b.safetensors", "c:x.safetensors", "model.bin", "", 3, None],
)
def test_an_index_cannot_leave_the_directory(tmp_path: Path, name: object) -> None:
    write_safetensors(tmp_path.parent / "model.safetensors", TENSORS)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"odd": name}}))
    with pytest.raises(ModelFileError, match="plain"):
        open_safetensors_model(tmp_path)


def test_an_index_is_held_to_its_word(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, 2)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["ghost"] = content["weight_map"]["odd"]
    index.write_text(json.dumps(content))
    with pytest.raises(ModelFileError, match="promises tensor ghost"):
        open_safetensors_model(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "\xff", "[" * 10_000]
)
def test_a_bad_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelFileError):
        open_safetensors_model(tmp_path)


def test_the_same_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, 2)
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", TENSORS)
    with pytest.raises(ModelFileError, match="is also in model-00001-of-00002"):
        open_safetensors_model(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="found neither"):
        open_safetensors_model(tmp_path)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutated")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_mutated_file_loads_or_is_refused(scratch: Path, data: st.DataObject) -> None:
    path = scratch / "m.safetensors"
    write_safetensors(path, TENSORS)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.unlink()  # the last example may still be open
    path.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    try:
        file = SafetensorsFile(path)
        for name in file.infos:
            file.read(name)
    except ModelFileError as error:
        assert "\n" not in str(error)
