"""GGUF files (versions 2 and 3, little-endian), whole or split in several files; tensors are read when asked for.

The header is read here and not with the gguf package, whose reader refuses files with I2_S tensors (type 36). Every
size is checked against the file before anything of that size is made. The package dequantises the tensors that are not
ternary.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ModelFileError
from tritune.formats.fields import Fields, short
from tritune.formats.file_bytes import FileBytes, FileRows
from tritune.formats.packing import i2_s_nbytes

I2_S = 36
TQ1_0 = 34
TQ2_0 = 35

# Types of bitnet.cpp that the gguf package does not know. 39 is TL2 there and MXFP4 in llama.cpp.
FOREIGN_TYPES = {I2_S: "I2_S", 37: "I8_S", 38: "TL1", 39: "TL2 or MXFP4"}

MAX_DIMENSIONS = 4
MAX_NESTING = 4  # arrays of arrays
SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies and what it is."""

    name: str
    type_id: int
    type_name: str
    shape: tuple[int, ...]  # rows first, as NumPy has it (GGUF lists the row length first)
    part: int  # index of the file
    start: int  # bytes from the beginning of the file
    nbytes: int


class GGUFModel:
    """The metadata and tensors of a GGUF file and, if it is split, of the files that belong to it."""

    def __init__(self, path: Path) -> None:
        """Open and check. Raises ModelFileError, one line, for any damage and for tensor types that are not known."""
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.infos: dict[str, TensorInfo] = {}
        self._parts: list[FileBytes] = []
        self._open_part(path)
        for part in self._other_parts():
            self._open_part(part)
        promised = Fields(self.metadata, str(path)).integer("split.tensors.count", len(self.infos), minimum=0)
        if promised != len(self.infos):
            raise ModelFileError(f"{path}: promises {promised} tensors, but its files hold {len(self.infos)}")

    def info(self, name: str) -> TensorInfo:
        """What is known of a tensor. Raises ModelFileError when there is none of that name."""
        if name not in self.infos:
            raise ModelFileError(f"{self.path}: tensor {name} is missing")
        return self.infos[name]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor."""
        info = self.info(name)
        return self._parts[info.part].read(info.start, info.nbytes)

    def rows(self, name: str, dtype: str = "u1") -> FileRows:
        """A tensor's rows as they are stored, read when they are asked for: as bytes, or as a type that it is of."""
        info = self.info(name)
        stored, rows = np.dtype(dtype), math.prod(info.shape[:-1])
        columns = info.nbytes // max(1, rows) // stored.itemsize
        return FileRows(self._parts[info.part], info.start, (rows, columns), stored)

    def dequantise(self, name: str, rows: slice) -> NDArray[np.float32]:
        """Some rows of a tensor as float32 [rows, columns]. Not for ternary types."""
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        info = self.info(name)
        try:
            kind = GGMLQuantizationType(info.type_id)
            # Wild scales of a damaged file may overflow.
            with np.errstate(all="ignore"):
                return np.asarray(dequantize(self.rows(name)[rows], kind), dtype=np.float32)
        except (NotImplementedError, ValueError):
            raise ModelFileError(
                f"{self.path}: tensor {name} has type {info.type_name} ({info.type_id}), which cannot be dequantised"
            ) from None

    def _other_parts(self) -> list[Path]:
        """The other files of a split model, which is opened by its first."""
        count = Fields(self.metadata, str(self.path)).integer("split.count", 1, minimum=0, maximum=99999)
        match = SPLIT_NAME.fullmatch(self.path.name)
        if count <= 1:
            return []
        if match is None or int(match[3]) != count:
            raise ModelFileError(
                f"{self.path}: one of {count} parts; expected a name ending in -00001-of-{count:05d}.gguf"
            )
        if int(match[2]) != 1:
            raise ModelFileError(
                f"{self.path}: part {int(match[2])} of {count}; give {match[1]}-00001-of-{match[3]}.gguf"
            )
        return [self.path.with_name(f"{match[1]}-{part:05d}-of-{match[3]}.gguf") for part in range(2, count + 1)]

    def _open_part(self, path: Path) -> None:
        """Read the header of one file and add its tensors."""
        file = FileBytes(path)
        metadata, tensors = _HeaderReader(_map_file(path), path).read_header()
        part = len(self._parts)
        if part == 0:
            self.metadata = metadata
        elif metadata.get("split.no") != part:
            raise ModelFileError(f"{path}: split.no is {short(metadata.get('split.no'))}; expected {part}")
        self._parts.append(file)
        for name, type_id, shape, start in tensors:
            type_name, nbytes = _tensor_size(path, name, type_id, shape)
            if start + nbytes > file.size:
                raise ModelFileError(
                    f"{path}: truncated: tensor {name} ends at byte {start + nbytes}, the file has {file.size}"
                )
            if name in self.infos:
                raise ModelFileError(f"{path}: tensor {name} is there twice")
            self.infos[name] = TensorInfo(name, type_id, type_name, shape, part, start, nbytes)


class _HeaderReader:
    """A cursor over the bytes of a file. Every read is checked against the file's end."""

    def __init__(self, data: NDArray[np.uint8], path: Path) -> None:
        self._data = data.data
        self._path = path
        self._at = 0

    def read_header(self) -> tuple[dict[str, Any], list[tuple[str, int, tuple[int, ...], int]]]:
        """Metadata, and (name, type, shape, start in the file) of each tensor."""
        if bytes(self._data[:4]) != b"GGUF":
            raise ModelFileError(f"{self._path}: not a GGUF file")
        self._at = 4
        version = self._scalar("<I")
        if version not in (2, 3):
            big_endian = version in (2 << 24, 3 << 24)
            found = "a big-endian file" if big_endian else f"version {version}"
            raise ModelFileError(f"{self._path}: GGUF version 2 or 3, little-endian, expected; found {found}")
        num_tensors, num_keys = self._scalar("<Q"), self._scalar("<Q")
        self._need(num_keys, 13, "metadata keys")  # at least a length, a type and one byte
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in metadata:
                raise ModelFileError(f"{self._path}: metadata key {short(key)} is there twice")
            metadata[key] = self._value(self._scalar("<I"), key, 0)
        self._need(num_tensors, 24, "tensors")  # at least a length, a count, a type and an offset
        tensors = [self._tensor() for _ in range(num_tensors)]
        alignment = Fields(metadata, str(self._path)).integer("general.alignment", 32, maximum=1 << 20)
        if alignment & (alignment - 1):
            raise ModelFileError(f"{self._path}: general.alignment is {alignment}; expected a power of two")
        base = -(-self._at // alignment) * alignment
        return metadata, [(name, type_id, shape, base + offset) for name, type_id, shape, offset in tensors]

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Name, type, shape and offset of a tensor."""
        name = self._string()
        if not name.isprintable():  # names stand in messages
            raise ModelFileError(f"{self._path}: {short(name)} is not a tensor's name")
        dimensions = self._scalar("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ModelFileError(f"{self._path}: tensor {short(name)} has {dimensions} dimensions; expected 1 to 4")
        shape = tuple(self._scalar("<Q") for _ in range(dimensions))[::-1]
        return name, self._scalar("<I"), shape, self._scalar("<Q")

    def _value(self, kind: int, key: str, depth: int) -> Any:
        """A metadata value of a type."""
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth >= MAX_NESTING:
            raise ModelFileError(f"{self._path}: metadata key {short(key)} has type {kind}, which is not known here")
        item, count = self._scalar("<I"), self._scalar("<Q")
        if item in _SCALARS:
            dtype = np.dtype(_SCALARS[item])
            self._need(count, dtype.itemsize, f"values of {short(key)}")
            start, self._at = self._at, self._at + count * dtype.itemsize
            return np.frombuffer(self._data[start : self._at], dtype=dtype).tolist()
        self._need(count, 8 if item == _STRING else 12, f"values of {short(key)}")
        return [self._value(item, key, depth + 1) for _ in range(count)]

    def _scalar(self, code: str) -> Any:
        size = struct.calcsize(code)
        self._need(1, size, "bytes")
        (value,) = struct.unpack_from(code, self._data, self._at)
        self._at += size
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        self._need(length, 1, "bytes of a string")
        raw = bytes(self._data[self._at : self._at + length])
        self._at += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ModelFileError(f"{self._path}: a string that ends at byte {self._at} is not UTF-8") from None

    def _need(self, count: int, size: int, what: str) -> None:
        """Refuse a count of things of at least ``size`` bytes that the rest of the file cannot hold."""
        if count * size > len(self._data) - self._at:
            raise ModelFileError(
                f"{self._path}: truncated or damaged: {count} {what} at byte {self._at} do not fit the file's "
                f"{len(self._data)} bytes"
            )


def _map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file as a read-only map, for the header."""
    if path.stat().st_size == 0:
        raise ModelFileError(f"{path}: not a GGUF file (it is empty)")
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))


def _tensor_size(path: Path, name: str, type_id: int, shape: tuple[int, ...]) -> tuple[str, int]:
    """Name of a tensor's type and its bytes. Raises ModelFileError for a type that cannot be read."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    values = math.prod(shape)
    if type_id == I2_S:
        return "I2_S", i2_s_nbytes(values)
    known = {int(kind): kind for kind in GGMLQuantizationType}
    if type_id in FOREIGN_TYPES or type_id not in known or known[type_id] not in GGML_QUANT_SIZES:
        type_name = FOREIGN_TYPES.get(type_id, "unknown")
        raise ModelFileError(f"{path}: tensor {name} has type {type_name} (id {type_id}), which is not supported")
    block, block_bytes = GGML_QUANT_SIZES[known[type_id]]
    if shape[-1] % block:
        raise ModelFileError(
            f"{path}: tensor {name} has rows of {shape[-1]} values; {known[type_id].name} needs a multiple of {block}"
        )
    return known[type_id].name, values // block * block_bytes
