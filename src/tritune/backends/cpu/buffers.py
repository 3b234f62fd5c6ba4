"""Memory of the CPU backend: aligned host memory, and tables in the file's own format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import NUMPY_DTYPES, Array, Buffer, DType, Table
from tritune.errors import DeviceError, OutOfMemoryError

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


class Block:
    """Zeroed aligned memory, owned by a buffer and its views."""

    def __init__(self, nbytes: int, release: Callable[[int], None]) -> None:
        self.nbytes = nbytes
        try:
            raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:
            raise OutOfMemoryError(f"no memory for {nbytes / 2**20:.1f} MiB on the CPU") from error
        start = -raw.ctypes.data % ALIGNMENT
        self.bytes: NDArray[np.uint8] = raw[start : start + nbytes]
        self.address = raw.ctypes.data + start
        self._release = release

    def __del__(self) -> None:
        if hasattr(self, "_release"):
            self._release(self.nbytes)


class CpuBuffer(Buffer):
    """A piece of a block with a shape; ``array`` is a view of the memory, ``address`` where it starts."""

    def __init__(self, block: Block, offset: int, shape: tuple[int, ...], dtype: DType) -> None:
        self.block = block
        self.offset = offset  # in bytes
        self.shape = shape
        self.dtype: DType = dtype
        itemsize = np.dtype(NUMPY_DTYPES[dtype]).itemsize
        self.nbytes = self.size * itemsize
        flat: NDArray[Any] = block.bytes[offset : offset + self.nbytes].view(NUMPY_DTYPES[dtype])
        self.array: NDArray[Any] = flat.reshape(shape)
        self.address = block.address + offset

    def view(self, start: int, shape: tuple[int, ...]) -> CpuBuffer:
        """See Buffer.view. Raises DeviceError when the range does not lie in the buffer."""
        count = int(np.prod(shape, dtype=np.int64))
        if start < 0 or count < 0 or start + count > self.size:
            raise DeviceError(f"view of elements {start} to {start + count} of a buffer of {self.size} elements")
        return CpuBuffer(self.block, self.offset + start * self.array.itemsize, shape, self.dtype)


class CpuTable(Table):
    """A [V, D] table in f32, f16 or bf16, as stored in the model's file, or in int8 with scales."""

    def __init__(self, buffer: CpuBuffer, scales: Buffer | None = None) -> None:
        self.rows, self.columns = buffer.shape
        self.dtype = buffer.dtype
        self.scales = scales  # f32 [V], of int8 rows
        self.nbytes = buffer.nbytes + (0 if scales is None else 4 * scales.size)
        self.buffer = buffer
        self.address = buffer.address


def own_buffer(buffer: Buffer) -> CpuBuffer:
    """``buffer`` as one of this backend. Raises DeviceError for another's."""
    if not isinstance(buffer, CpuBuffer):
        raise DeviceError(f"a buffer of another backend ({type(buffer).__name__}) was given to the CPU backend")
    return buffer


def own_table(table: Table) -> CpuTable:
    """``table`` as one of this backend. Raises DeviceError for another's."""
    if not isinstance(table, CpuTable):
        raise DeviceError(f"a table of another backend ({type(table).__name__}) was given to the CPU backend")
    return table


def cast(array: Array, dtype: DType) -> Array:
    """``array`` in the host type of ``dtype``; bf16 is raw uint16 and nothing else. Raises DeviceError."""
    if dtype == "bf16" and array.dtype != np.uint16:
        raise DeviceError(f"a bf16 buffer takes raw uint16 bits, found {array.dtype}")
    return array.astype(NUMPY_DTYPES[dtype], copy=False)


def same_memory(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers start at the same address."""
    return own_buffer(a).address == own_buffer(b).address
