"""Safetensors files and sharded models, read lazily: one tensor at a time, or some rows of one.

The safetensors library checks a file when it is opened (header, offsets, gaps, overlaps). The values are then read by
this module, because the library cannot give bfloat16 to NumPy: here BF16 comes out as its raw uint16 bits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from tritune.errors import ModelFileError
from tritune.formats.fields import read_json_object, short
from tritune.formats.file_bytes import FileBytes, FileRows

NUMPY_TYPES: dict[str, str] = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies in its file and what it is."""

    name: str
    dtype: str  # as the file names it: "F32", "BF16", "U8", …
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    nbytes: int


class SafetensorsFile:
    """One file. ``infos`` lists its tensors; ``read`` gives one."""

    def __init__(self, path: Path) -> None:
        """Open and check a file. Raises ModelFileError, one line, for any damage."""
        self.path = path
        self.metadata, self.infos = _read_header(path)
        self._file = FileBytes(path)

    def read(self, name: str) -> NDArray[Any]:
        """The values of a tensor; BF16 as raw uint16. Raises ModelFileError for a dtype NumPy lacks."""
        info = self.infos[name]
        return self._file.read(info.start, info.nbytes).view(self._dtype(info)).reshape(info.shape)

    def rows(self, name: str) -> FileRows:
        """A matrix whose rows are read when they are asked for. Raises as ``read``."""
        info = self.infos[name]
        return FileRows(self._file, info.start, info.shape, self._dtype(info))

    def _dtype(self, info: TensorInfo) -> np.dtype[Any]:
        if info.dtype not in NUMPY_TYPES:
            raise ModelFileError(f"{self.path}: tensor {info.name} has dtype {info.dtype}, which is not supported")
        return np.dtype(NUMPY_TYPES[info.dtype])


class SafetensorsModel:
    """The tensors of a model directory: one file, or shards listed by an index."""

    def __init__(self, directory: Path, files: Iterable[SafetensorsFile]) -> None:
        self.directory = directory
        self._file_of: dict[str, SafetensorsFile] = {}
        for file in files:
            for name in file.infos:
                if name in self._file_of:
                    raise ModelFileError(f"{file.path}: tensor {name} is also in {self._file_of[name].path.name}")
                self._file_of[name] = file

    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape of a tensor. Raises ModelFileError when there is none of that name."""
        if name not in self._file_of:
            raise ModelFileError(f"{self.directory}: tensor {name} is missing")
        return self._file_of[name].infos[name]

    def read(self, name: str) -> NDArray[Any]:
        """The values of a tensor (see SafetensorsFile.read)."""
        self.info(name)
        return self._file_of[name].read(name)

    def rows(self, name: str) -> FileRows:
        """The rows of a matrix (see SafetensorsFile.rows)."""
        self.info(name)
        return self._file_of[name].rows(name)


def open_safetensors_model(directory: Path) -> SafetensorsModel:
    """Open ``model.safetensors`` of a directory, or the shards of ``model.safetensors.index.json``."""
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if single.is_file():
        return SafetensorsModel(directory, [SafetensorsFile(single)])
    if not index.is_file():
        raise ModelFileError(f"{directory}: found neither model.safetensors nor model.safetensors.index.json")
    weight_map = _read_weight_map(index)
    files = [SafetensorsFile(directory / name) for name in dict.fromkeys(weight_map.values())]
    model = SafetensorsModel(directory, files)
    for name in weight_map:
        if name not in model:
            raise ModelFileError(f"{index}: promises tensor {name} in {weight_map[name]}, which does not hold it")
    return model


def _read_weight_map(index: Path) -> dict[str, str]:
    """The index's tensor names and file names. A name that could leave the directory is refused."""
    weight_map: object = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index}: weight_map is {short(weight_map)}; expected tensor names and their files")
    result: dict[str, str] = {}
    for name, file in cast("dict[str, object]", weight_map).items():
        plain = isinstance(file, str) and file.endswith(".safetensors") and not set(file) & set("/\\:\0")
        if not isinstance(file, str) or not plain:
            raise ModelFileError(
                f"{index}: {short(file)} is not a plain .safetensors file name in the model's directory"
            )
        result[name] = file
    return result


def _read_header(path: Path) -> tuple[dict[str, str], dict[str, TensorInfo]]:
    """Metadata and tensor places of a file that the safetensors library accepts."""
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="numpy"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = cast("dict[str, dict[str, Any]]", json.loads(file.read(length)))
        size = path.stat().st_size
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not a usable safetensors file: {_one_line(error)}") from None
    metadata = cast("Mapping[str, str]", header.pop("__metadata__", None) or {})
    infos: dict[str, TensorInfo] = {}
    for name, entry in header.items():
        if not name.isprintable():  # names stand in messages
            raise ModelFileError(f"{path}: {short(name)} is not a tensor's name")
        start, stop = (int(offset) for offset in entry["data_offsets"])
        if not 0 <= start <= stop <= size - 8 - length:
            raise ModelFileError(f"{path}: tensor {name} lies outside of the file")
        shape = tuple(int(dim) for dim in entry["shape"])
        # The library has checked this for the entry that it saw; a duplicate key could have hidden another.
        item = NUMPY_TYPES.get(str(entry["dtype"]))
        if item is not None and math.prod(shape) * np.dtype(item).itemsize != stop - start:
            raise ModelFileError(f"{path}: tensor {name} has a size that does not fit its shape {shape}")
        infos[name] = TensorInfo(name, str(entry["dtype"]), shape, 8 + length + start, stop - start)
    return dict(metadata), infos


def _one_line(error: Exception) -> str:
    """An error's text on one line."""
    return " ".join(str(error).split()) or type(error).__name__
