"""The NumPy backend: every op calls its definition. It needs no driver and serves as the reference of the others.

In float32 it is the fallback on any machine (its products run in BLAS); in float64 it is what the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import (
    NUMPY_DTYPES,
    Array,
    Backend,
    Buffer,
    DType,
    Program,
    Stats,
    Table,
    TernaryWeight,
)
from tritune.backends.numpy.buffers import NumpyBuffer, NumpyProgram, NumpyTable, NumpyTernary, Scratch
from tritune.backends.numpy.calls import array as as_array
from tritune.backends.numpy.head import HeadOps
from tritune.backends.numpy.linear import LinearOps
from tritune.backends.numpy.rows import RowOps
from tritune.errors import OutOfMemoryError
from tritune.formats.file_bytes import RowSource


class NumpyBackend(RowOps, LinearOps, HeadOps, Backend):
    """Runs the definitions on the CPU, in float32 or float64."""

    def __init__(self, dtype: type[np.floating[Any]] = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self.name = "numpy"
        self.description = f"NumPy {np.__version__} ({self.dtype.name})"
        self.stats = Stats()
        self._scratch = Scratch(self.dtype)
        self._recording: NumpyProgram | None = None

    # -- memory -----------------------------------------------------------------------------------------------------
    def _numpy_dtype(self, dtype: DType) -> np.dtype[Any]:
        return self.dtype if dtype == "f32" else np.dtype(NUMPY_DTYPES[dtype])

    def empty(self, shape: tuple[int, ...], dtype: DType = "f32") -> NumpyBuffer:
        size = int(np.prod(shape, dtype=np.int64))
        try:
            flat: NDArray[Any] = np.zeros(size, self._numpy_dtype(dtype))
        except (MemoryError, ValueError) as error:
            needed = size * self._numpy_dtype(dtype).itemsize
            raise OutOfMemoryError(f"no memory for a buffer of {needed / 2**20:.0f} MiB (shape {shape})") from error
        self.stats.objects += 1
        self.stats.bytes_allocated += flat.nbytes
        return NumpyBuffer(flat, shape, dtype)

    def write(self, buffer: Buffer, array: Array) -> None:
        as_array(buffer).reshape(-1)[...] = np.asarray(array).reshape(-1)

    def read(self, buffer: Buffer) -> Array:
        return as_array(buffer).copy()

    def pack_ternary(self, parts: Sequence[tuple[NDArray[np.int8], float]]) -> TernaryWeight:
        codes = parts[0][0] if len(parts) == 1 else np.concatenate([p[0] for p in parts])
        sizes = tuple(p[0].shape[0] for p in parts)
        row_scale = np.repeat(np.array([p[1] for p in parts], self.dtype), sizes)
        self.stats.bytes_allocated += codes.nbytes
        return NumpyTernary(codes, row_scale, sizes, self._scratch)

    def table(self, rows: RowSource, dtype: DType, scales: NDArray[np.float32] | None = None) -> Table:
        array = rows[:]
        self.stats.bytes_allocated += array.nbytes
        return NumpyTable(array, dtype, scales)

    def close(self) -> None:
        self._scratch = Scratch(self.dtype)

    # -- programs ---------------------------------------------------------------------------------------------------
    @contextmanager
    def record(self) -> Generator[Program]:
        assert self._recording is None, "a program is already being recorded"
        program = self._recording = NumpyProgram(self.submit)
        try:
            yield program
        finally:
            self._recording = None

    def submit(self, programs: Sequence[Program]) -> None:
        self.stats.submits += 1
        for program in programs:
            assert isinstance(program, NumpyProgram)
            for call in program.calls:
                call()

    def synchronize(self) -> None:
        pass

    def _do(self, call: Callable[[], None]) -> None:
        if self._recording is None:
            self.stats.submits += 1
            call()
        else:
            self._recording.calls.append(call)

    def zero(self, buffer: Buffer) -> None:
        values = as_array(buffer)
        self._do(lambda: values.fill(0))
