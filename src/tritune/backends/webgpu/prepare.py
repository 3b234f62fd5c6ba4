"""From the arguments of ``dispatch`` to device objects: pipelines, parameters and bind groups, each made once."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from tritune.backends.base import Buffer, Stats
from tritune.errors import DeviceError

from .buffers import WebGPUBuffer, human_bytes, overlap, own_buffer, round_up
from .device import Device
from .memory import Memory
from .shaders import Shaders

_UNIFORM_SLOT = 256  # bytes; the largest offset alignment that WebGPU allows a device to ask for
_UNIFORM_CHUNK = 64 << 10
_OFFSETS = 1 << 32  # those that a dispatch can give are below
_CACHED_GROUPS = 4096  # bind groups kept for ops outside programs; a program keeps its own alive


@dataclass(frozen=True)
class Dispatch:
    """One prepared dispatch, and what it needs alive."""

    kernel: str
    pipeline: Any
    group: Any
    offsets: tuple[int, ...]  # in the bind group, of each of its bindings, or none
    grid: tuple[int, int, int]
    buffers: tuple[WebGPUBuffer, ...]


class Parameters:
    """The uniform arena: each distinct block of parameters once, in a slot of its own that never changes."""

    def __init__(self, device: Device, memory: Memory) -> None:
        self._device = device
        self._memory = memory
        self._slots: dict[bytes, tuple[Any, int]] = {}
        self._chunks: list[Any] = []
        self._used = _UNIFORM_CHUNK

    def slot(self, block: bytes) -> tuple[Any, int]:
        """(device buffer, offset) of a block of parameters."""
        if block not in self._slots:
            if self._used + _UNIFORM_SLOT > _UNIFORM_CHUNK:
                self._chunks.append(self._memory.create_buffer(_UNIFORM_CHUNK, "UNIFORM|COPY_DST"))
                self._used = 0
            with self._device.errors("writing parameters"):
                self._device.queue.write_buffer(self._chunks[-1], self._used, block)
            self._slots[block] = (self._chunks[-1], self._used)
            self._used += _UNIFORM_SLOT
        return self._slots[block]

    def close(self) -> None:
        """Destroy the device buffers."""
        for chunk in self._chunks:
            chunk.destroy()
        self._chunks.clear()


class Preparer:
    """Turns the arguments of ``dispatch`` into device objects, each made once."""

    def __init__(self, device: Device, memory: Memory, stats: Stats) -> None:
        self._device = device
        self._stats = stats
        self.shaders = Shaders(device, stats)
        self.parameters = Parameters(device, memory)
        self._groups: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    def prepare(
        self,
        kernel: str,
        variant: dict[str, object],
        params: Sequence[int | float],
        buffers: Sequence[Buffer],
        grid: tuple[int, int, int],
    ) -> Dispatch:
        """See ``WebGPUCore.dispatch``."""
        bound = tuple(checked_buffers(kernel, buffers, self._device.max_binding, self._device.max_bindings))
        pipeline = self.shaders.pipeline(kernel, variant, len(bound))
        group, offsets = self._group(pack_params(params), bound)
        return Dispatch(kernel, pipeline, group, offsets, self._fold(kernel, grid), bound)

    def _group(self, block: bytes, buffers: tuple[WebGPUBuffer, ...]) -> tuple[Any, tuple[int, ...]]:
        """The bind group, and the offsets in it.

        With offsets of their own, dispatches that bind other ranges of the same arenas share a group: what a
        dispatch costs on the host is most of all the memory of its group, which is in no cache.
        """
        uniform, at = self.parameters.slot(block)
        ranges = [(uniform, at, len(block))] + [(b.arena.handle, b.offset, max(b.nbytes, 4)) for b in buffers]
        offsets: tuple[int, ...] = ()
        if self.shaders.dynamic(len(buffers)):
            offsets = tuple(offset % _OFFSETS for _, offset, _ in ranges)
            ranges = [(handle, offset - offset % _OFFSETS, size) for handle, offset, size in ranges]
        serials = (id(uniform), *(b.arena.serial for b in buffers))
        key = tuple((serial, *where) for serial, (_, *where) in zip(serials, ranges, strict=True))
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key], offsets
        entries = [
            {"binding": i, "resource": {"buffer": handle, "offset": start, "size": size}}
            for i, (handle, start, size) in enumerate(ranges)
        ]
        with self._device.errors("making a bind group"):
            group = self._device.handle.create_bind_group(layout=self.shaders.layout(len(buffers))[0], entries=entries)
        self._stats.objects += 1
        self._groups[key] = group
        if len(self._groups) > _CACHED_GROUPS:
            self._groups.popitem(last=False)
        return group, offsets

    def _fold(self, kernel: str, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """A grid within the device's limit: too many in x go on in y if y is 1, too many in y go on in z if z is 1."""
        x, y, z = (int(side) for side in grid)
        limit = self._device.max_grid
        if x > limit and y == 1:
            y = -(-x // limit)
            x = -(-x // y)
        elif y > limit and z == 1:
            z = -(-y // limit)
            y = -(-y // z)
        if max(x, y, z) > limit:
            raise DeviceError(f"kernel {kernel}: a grid of {grid} workgroups, the device's limit is {limit} a side")
        return x, y, z

    def close(self) -> None:
        """Drop the bind groups and destroy the uniform arena."""
        self._groups.clear()
        self.parameters.close()


def pack_params(params: Sequence[int | float]) -> bytes:
    """Integers as u32 (negative ones as i32), floats as f32, padded to 16 bytes."""
    words = [int(v) & 0xFFFFFFFF if isinstance(v, (Integral, np.bool_)) else float(v) for v in params]
    block = b"".join(struct.pack("<I" if isinstance(word, int) else "<f", word) for word in words)
    if len(block) > _UNIFORM_SLOT:
        raise DeviceError(f"{len(params)} parameters, at most {_UNIFORM_SLOT // 4} fit")
    return block.ljust(round_up(max(len(block), 16), 16), b"\0")


def checked_buffers(kernel: str, buffers: Sequence[Buffer], max_binding: int, most: int) -> list[WebGPUBuffer]:
    """The buffers of a dispatch, checked: not too many, no two ranges overlap, none is larger than a binding may be."""
    bound = [own_buffer(buffer) for buffer in buffers]
    if len(bound) > most:
        raise DeviceError(f"kernel {kernel} binds {len(bound)} buffers, the device's limit is {most}")
    for i, a in enumerate(bound):
        if a.nbytes > max_binding:
            raise DeviceError(
                f"kernel {kernel}: a buffer {a.dtype} {a.shape} of {human_bytes(a.nbytes)} does not fit the device's "
                f"binding limit of {human_bytes(max_binding)}"
            )
        for j, b in enumerate(bound[:i]):
            if overlap(a, b):
                raise DeviceError(f"kernel {kernel}: buffers {j} and {i} overlap, WebGPU forbids to bind both")
    return bound
