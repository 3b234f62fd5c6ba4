"""Buffers and the arenas that they are parts of.

A buffer is a range of an arena, so that thousands of small tensors need a handful of device objects. Every arena is
bound ``read_write``; the ranges bound in one dispatch never overlap (program.py checks it).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import NUMPY_DTYPES, Array, Buffer, DType
from tritune.errors import DeviceError

Bytes = NDArray[np.uint8]

BLOCK_ALIGNMENT = 256  # bytes; the largest offset alignment that WebGPU allows a device to ask for


def human_bytes(size: int) -> str:
    """``size`` for a message: 1.5 GiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


class Arena:
    """One device buffer and its free ranges."""

    def __init__(self, handle: Any, size: int, serial: int) -> None:
        self.handle = handle
        self.size = size
        self.serial = serial  # never used again, unlike id()
        self.fresh = 0  # the bytes from here on were never used, so the device still holds zeros there
        self.free: list[tuple[int, int]] = [(0, size)]  # (offset, size), sorted, never adjacent

    def take(self, size: int) -> int | None:
        """The offset of a free range of ``size`` bytes, now taken; None when there is none."""
        for i, (offset, available) in enumerate(self.free):
            if available >= size:
                self.free[i : i + 1] = [(offset + size, available - size)] if available > size else []
                return offset
        return None

    @property
    def largest(self) -> int:
        """Bytes of the largest free range."""
        return max((size for _, size in self.free), default=0)

    @property
    def unused(self) -> bool:
        """Whether no byte is taken."""
        return self.free == [(0, self.size)]

    def give_back(self, offset: int, size: int) -> None:
        """Return a range, joined with its free neighbours."""
        insort(self.free, (offset, size))
        merged: list[tuple[int, int]] = []
        for start, length in self.free:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self.free = merged


class Block:
    """A range of an arena, owned by a buffer and its views; it returns to the arena when the last of them goes."""

    def __init__(self, arena: Arena, offset: int, size: int, release: Callable[[Arena, int, int], None]) -> None:
        self.arena = arena
        self.offset = offset
        self.size = size
        self._release = release

    def __del__(self) -> None:
        self._release(self.arena, self.offset, self.size)


class WebGPUBuffer(Buffer):
    """A range of device memory with a shape and a dtype. i8, f16 and bf16 elements are packed in 32-bit words."""

    def __init__(self, block: Block, offset: int, shape: tuple[int, ...], dtype: DType, alignment: int) -> None:
        self.block = block
        self.offset = offset  # in bytes, in the arena
        self.shape = shape
        self.dtype: DType = dtype
        self.nbytes = round_up(self.size * item_bytes(dtype), 4)
        self.alignment = alignment
        self.parts: tuple[WebGPUBuffer, ...] = ()  # what a range of several blocks keeps alive

    @property
    def arena(self) -> Arena:
        """The arena that the buffer is a part of."""
        return self.block.arena

    def view(self, start: int, shape: tuple[int, ...]) -> WebGPUBuffer:
        """See Buffer.view. Raises DeviceError when the range does not lie in the buffer or cannot be bound."""
        count = int(np.prod(shape, dtype=np.int64))
        if start < 0 or start + count > self.size:
            raise DeviceError(f"view of elements {start} to {start + count} of a buffer of {self.size} elements")
        offset = self.offset + start * item_bytes(self.dtype)
        if offset % self.alignment:
            raise DeviceError(
                f"view at element {start} of {self.dtype}: offsets are multiples of {self.alignment} bytes"
            )
        view = WebGPUBuffer(self.block, offset, shape, self.dtype, self.alignment)
        view.transient = self.transient
        return view


def same_memory(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers are the same range of device memory, so that it must be bound once."""
    first, second = own_buffer(a), own_buffer(b)
    return first.arena is second.arena and first.offset == second.offset and first.nbytes == second.nbytes


def overlap(a: WebGPUBuffer, b: WebGPUBuffer) -> bool:
    """Whether two ranges of device memory share a byte."""
    return a.arena is b.arena and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def covering(buffers: Sequence[Buffer], others: Sequence[Buffer]) -> tuple[WebGPUBuffer, list[int]] | None:
    """The range of memory in which ``buffers`` lie as one binding of words, and the word where each begins in it.

    None when they lie in different arenas, or one of ``others`` lies between them. It lets a kernel see small buffers
    that were made together beyond the 8 that it may bind.
    """
    parts = [own_buffer(buffer) for buffer in buffers]
    start = min(p.offset for p in parts)
    end = start + round_up(max(p.offset + p.nbytes for p in parts) - start, 16)  # whole vectors; blocks have the room
    first = min(parts, key=lambda p: p.offset)
    if any(p.arena is not first.arena for p in parts):
        return None
    whole = WebGPUBuffer(first.block, start, ((end - start) // 4,), "u32", first.alignment)
    whole.parts = tuple(parts)
    if any(overlap(whole, own_buffer(other)) for other in others):
        return None
    return whole, [(p.offset - start) // 4 for p in parts]


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple that is not below ``size``."""
    return -(-size // multiple) * multiple


def item_bytes(dtype: DType) -> int:
    """Bytes of one element on the device and on the host."""
    return np.dtype(NUMPY_DTYPES[dtype]).itemsize


def as_array(raw: Bytes, buffer: WebGPUBuffer) -> Array:
    """Bytes of a buffer as an array of its dtype and shape."""
    return raw.view(NUMPY_DTYPES[buffer.dtype])[: buffer.size].reshape(buffer.shape)


def own_buffer(buffer: Buffer) -> WebGPUBuffer:
    """``buffer`` as one of this backend. Raises DeviceError for another's."""
    if not isinstance(buffer, WebGPUBuffer):
        raise DeviceError(f"a buffer of another backend ({type(buffer).__name__}) was given to WebGPU")
    return buffer
