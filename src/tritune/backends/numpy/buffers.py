"""Buffers, ternary weights, tables and programs of the NumPy backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import Array, Buffer, DType, Program, Table, TernaryWeight
from tritune.ops.arrays import FloatArray


class NumpyBuffer(Buffer):
    """A shape over a piece of a flat array."""

    def __init__(self, flat: NDArray[Any], shape: tuple[int, ...], dtype: DType) -> None:
        self.flat = flat
        self.shape = shape
        self.dtype = dtype
        self.array: NDArray[Any] = flat.reshape(shape)

    def view(self, start: int, shape: tuple[int, ...]) -> NumpyBuffer:
        size = int(np.prod(shape, dtype=np.int64))
        if start < 0 or start + size > self.flat.size:
            raise ValueError(f"view of {size} elements from {start} in a buffer of {self.flat.size}")
        return NumpyBuffer(self.flat[start : start + size], shape, self.dtype)


@dataclass(eq=False)
class NumpyTernary(TernaryWeight):
    """Codes as int8 [N, K]; a float copy exists only of the matrix in use, in a scratch shared by all."""

    codes: NDArray[np.int8]
    row_scale: FloatArray  # [N]
    parts: tuple[int, ...]
    scratch: Scratch

    def __post_init__(self) -> None:
        self.out_features, self.in_features = self.codes.shape
        self.nbytes = self.codes.nbytes

    def dense(self) -> FloatArray:
        """The codes as floats [N, K], valid until the next call on any weight of the backend."""
        out = self.scratch.take(self.codes.shape)
        np.copyto(out, self.codes)
        return out


class Scratch:
    """One float array that grows to the largest matrix asked for."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.flat: FloatArray = np.empty(0, dtype)

    def take(self, shape: tuple[int, ...]) -> FloatArray:
        """The scratch in a shape; its contents are whatever was there."""
        size = int(np.prod(shape))
        if self.flat.size < size:
            self.flat = np.empty(size, self.dtype)
        return self.flat[:size].reshape(shape)


@dataclass(eq=False)
class NumpyTable(Table):
    """A table in the file's own format (bf16 as raw uint16), or in int8 with a scale for each row."""

    array: Array
    dtype: DType
    scales: NDArray[np.float32] | None = None  # [V]

    def __post_init__(self) -> None:
        self.rows, self.columns = self.array.shape
        self.nbytes = self.array.nbytes


class NumpyProgram(Program):
    """A list of calls."""

    def __init__(self, submit: Callable[[Sequence[Program]], None]) -> None:
        self.calls: list[Callable[[], None]] = []
        self._submit = submit

    def fetch(self, buffer: Buffer) -> None:
        """Nothing to prepare: host and device are the same memory."""

    def run(self) -> None:
        self._submit([self])

    def result(self, buffer: Buffer) -> Array:
        assert isinstance(buffer, NumpyBuffer)
        return buffer.array.copy()
