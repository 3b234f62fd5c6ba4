"""GGUF files: metadata, tensors, split files, how each kind of damage is refused, and mutated files."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_gguf import Tensors, encode_string, gguf_bytes
from tritune.errors import ModelFileError
from tritune.formats.gguf import GGUFModel

METADATA: dict[str, Any] = {
    "general.architecture": "bitnet",
    "number": 7,
    "ratio": 0.5,
    "flag": True,
    "words": ["a", "ü", ""],
    "ids": [3, -1, 2],
}
TENSORS: Tensors = {
    "a": (0, (2, 3), np.arange(6, dtype="<f4").tobytes()),
    "b": (36, (2, 64), bytes(32) + struct.pack("<f", 2.0) + bytes(28)),
    "c": (1, (3,), np.array([1, 2, 3], dtype="<f2").tobytes()),
}


def write(path: Path, metadata: dict[str, Any] = METADATA, tensors: Tensors = TENSORS, **options: int) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors, **options))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        GGUFModel(path)
    message = str(caught.value)
    assert "\n" not in message and str(path.parent) in message
    return message


@pytest.mark.parametrize(("version", "alignment"), [(2, 32), (3, 32), (3, 64)])
def test_everything_is_read(tmp_path: Path, version: int, alignment: int) -> None:
    metadata = METADATA | {"general.alignment": alignment}
    model = GGUFModel(write(tmp_path / "m.gguf", metadata, version=version, alignment=alignment))
    assert model.metadata == metadata
    for name, (kind, shape, data) in TENSORS.items():
        assert (model.info(name).type_id, model.info(name).shape) == (kind, shape)
        assert model.raw(name).tobytes() == data
    np.testing.assert_array_equal(model.dequantise("a", slice(None)), np.arange(6).reshape(2, 3))
    with pytest.raises(ModelFileError, match="tensor z is missing"):
        model.raw("z")


def test_the_header_is_that_of_the_gguf_package(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tensors={"a": TENSORS["a"], "c": TENSORS["c"]})
    model, reference = GGUFModel(path), GGUFReader(path)
    for tensor in reference.tensors:
        info = model.info(tensor.name)
        assert info.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert (info.start, info.nbytes, info.type_id) == (tensor.data_offset, tensor.n_bytes, tensor.tensor_type)
    for key in METADATA:
        assert model.metadata[key] == reference.fields[key].contents()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1", "Q4_K", "Q6_K", "BF16"])
def test_quantised_tensors_are_dequantised_by_rows(tmp_path: Path, kind: str) -> None:
    quant = GGMLQuantizationType[kind]
    rng = np.random.default_rng(0)
    one_row = np.zeros((1, 256), dtype=np.float32)
    size = quants.quant_shape_to_byte_shape(one_row.shape, quant)[1]
    data = rng.integers(0, 60, (5, size), dtype=np.uint8)  # small bytes: finite scales
    model = GGUFModel(write(tmp_path / "m.gguf", tensors={"t": (int(quant), (5, 256), data.tobytes())}))
    rows = np.concatenate([model.dequantise("t", slice(i, i + 2)) for i in (0, 2, 4)])
    np.testing.assert_array_equal(rows, quants.dequantize(data, quant))


@pytest.mark.parametrize(
    ("type_id", "message"),
    [
        (38, r"tensor t has type TL1 \(id 38\)"),
        (39, r"tensor t has type TL2 or MXFP4 \(id 39\)"),
        (37, r"I8_S \(id 37\)"),
        (4, r"unknown \(id 4\)"),
        (1 << 31, r"unknown \(id 2147483648\)"),
    ],
)
def test_types_that_cannot_be_read_are_refused_by_name_and_id(tmp_path: Path, type_id: int, message: str) -> None:
    path = write(tmp_path / "m.gguf", tensors={"t": (type_id, (1, 256), bytes(1024))})
    with pytest.raises(ModelFileError, match=message):
        GGUFModel(path)


def test_a_type_without_dequantisation_is_refused(tmp_path: Path) -> None:
    model = GGUFModel(write(tmp_path / "m.gguf", tensors={"t": (26, (1, 4), bytes(16))}))
    with pytest.raises(ModelFileError, match=r"type I32 \(26\), which cannot be dequantised"):
        model.dequantise("t", slice(None))


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    assert "multiple of 32" in refusal(write(tmp_path / "m.gguf", tensors={"t": (8, (2, 48), bytes(102))}))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = gguf_bytes(METADATA, TENSORS)
    path = tmp_path / "m.gguf"
    for size in range(0, len(data), 7):
        path.unlink(missing_ok=True)
        path.write_bytes(data[:size])
        refusal(path)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"GGML", "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1), "version 1"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<IQ", 3, 1 << 60), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60), "metadata keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1 << 62), "bytes of a string"),
    ],
)
def test_bad_headers_are_refused(tmp_path: Path, start: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(start + gguf_bytes(METADATA, TENSORS)[len(start) :])
    assert message in refusal(path)


def raw_value(kind: int, value: bytes) -> bytes:
    """A file with one metadata value of a type."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + encode_string("k") + struct.pack("<I", kind) + value + bytes(32)


@pytest.mark.parametrize(
    "data",
    [
        raw_value(13, b""),  # no such type
        raw_value(9, struct.pack("<IQ", 0, 1 << 60)),  # more bytes than the file has
        raw_value(9, struct.pack("<IQ", 12, 1 << 61)),  # 2^64 bytes
        raw_value(9, struct.pack("<IQ", 8, 1 << 60)),
        raw_value(9, struct.pack("<IQ", 9, 1) * 1000),  # nested without end
        raw_value(9, struct.pack("<IQ", 13, 1)),
        raw_value(8, struct.pack("<Q", 2) + b"\xff\xfe"),  # not UTF-8
    ],
)
def test_bad_values_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    refusal(path)


@pytest.mark.parametrize("alignment", [0, 3, 1 << 30, "32"])
def test_a_bad_alignment_is_refused(tmp_path: Path, alignment: object) -> None:
    assert "general.alignment" in refusal(write(tmp_path / "m.gguf", {"general.alignment": alignment}))


def test_tensors_and_keys_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    data = gguf_bytes({"kx": 1, "ky": 2}, {"tx": TENSORS["a"], "ty": TENSORS["c"]})
    path = tmp_path / "m.gguf"
    path.write_bytes(data.replace(b"ty", b"tx"))
    assert "tensor tx is there twice" in refusal(path)
    path = tmp_path / "n.gguf"
    path.write_bytes(data.replace(b"ky", b"kx"))
    assert "metadata key 'kx' is there twice" in refusal(path)


def test_too_many_dimensions_are_refused(tmp_path: Path) -> None:
    assert "5 dimensions" in refusal(write(tmp_path / "m.gguf", tensors={"t": (0, (1,) * 5, bytes(4))}))


def write_split(directory: Path, count: int = 3) -> list[Path]:
    """One tensor a part."""
    paths: list[Path] = []
    for part, (name, tensor) in enumerate(list(TENSORS.items())[:count]):
        own = {"split.no": part, "split.count": count, "split.tensors.count": count}
        path = directory / f"m-{part + 1:05d}-of-{count:05d}.gguf"
        paths.append(write(path, (METADATA if part == 0 else {}) | own, {name: tensor}))
    return paths


def test_a_split_model_is_one_model(tmp_path: Path) -> None:
    model = GGUFModel(write_split(tmp_path)[0])
    assert set(model.infos) == set(TENSORS)
    assert model.metadata["words"] == METADATA["words"]
    for name, (_, _, data) in TENSORS.items():
        assert model.raw(name).tobytes() == data


def test_a_split_model_is_opened_by_its_first_part(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    assert "part 2 of 3; give m-00001-of-00003.gguf" in refusal(paths[1])
    paths[0].rename(tmp_path / "renamed.gguf")
    assert "expected a name ending in -00001-of-00003.gguf" in refusal(tmp_path / "renamed.gguf")


def test_a_split_model_with_a_missing_or_wrong_part_is_refused(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[1].unlink()
    assert "m-00002-of-00003.gguf: no such file" in refusal(paths[0])
    paths[1].write_bytes(paths[2].read_bytes())
    assert "split.no is 2; expected 1" in refusal(paths[0])
    write(paths[1], {"split.no": 1}, {})
    assert "promises 3 tensors, but its files hold 2" in refusal(paths[0])


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutated")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_mutated_file_loads_or_is_refused(scratch: Path, data: st.DataObject) -> None:
    path = scratch / "m.gguf"
    content = bytearray(gguf_bytes(METADATA, TENSORS))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from([0, 1, 9, 127, 128, 255]))
    path.unlink(missing_ok=True)  # the last example may still be open
    path.write_bytes(content)
    tracemalloc.start()
    try:
        model = GGUFModel(path)
        for name, info in model.infos.items():
            model.raw(name)
            if info.type_id != 36:
                model.dequantise(name, slice(0, 2))
    except ModelFileError as error:
        assert "\n" not in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 10_000_000
