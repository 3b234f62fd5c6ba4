"""The memory of a device: buffers cut from arenas, uploads and downloads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from tritune.backends.base import NUMPY_DTYPES, Array, DType, Stats
from tritune.errors import DeviceError, OutOfMemoryError

from .buffers import (
    BLOCK_ALIGNMENT,
    Arena,
    Block,
    Bytes,
    WebGPUBuffer,
    as_array,
    human_bytes,
    item_bytes,
    round_up,
)
from .device import Device

_ARENA = "STORAGE|COPY_SRC|COPY_DST"
_FIRST_ARENA = 4 << 20  # bytes
_STAGING_BYTES = 32 << 20  # downloads larger than this come in pieces


class Memory:
    """The arenas of a device, and the staging buffer through which downloads come."""

    def __init__(self, device: Device, stats: Stats) -> None:
        self._device = device
        self._stats = stats
        self._arenas: list[Arena] = []
        self._arenas_made = 0
        self._returned: deque[tuple[Arena, int, int]] = deque()
        self._lock = Lock()
        self._staging: Any = None
        self._staging_size = 0
        self._callback: tuple[Any, Any] | None = None
        self._map_status: int | None = None
        self.closed = False

    # -- allocation -----------------------------------------------------------------------------------------------
    def empty(self, shape: tuple[int, ...], dtype: DType) -> WebGPUBuffer:
        """A buffer of zeros. Raises OutOfMemoryError with the size asked for."""
        return self.empty_together([(shape, dtype)])[0]

    def empty_together(self, wanted: Sequence[tuple[tuple[int, ...], DType]]) -> list[WebGPUBuffer]:
        """Buffers of zeros, one behind the other in one block, if the device has blocks that large.

        Raises OutOfMemoryError with the size asked for.
        """
        self._check_open()
        offsets, size = list[int](), 0
        for shape, dtype in wanted:
            if any(side < 0 for side in shape):
                raise DeviceError(f"a buffer cannot have the shape {shape}")
            offsets.append(size)
            size += round_up(max(prod(int(side) for side in shape) * item_bytes(dtype), 4), BLOCK_ALIGNMENT)
        if size > self._device.max_buffer and len(wanted) > 1:
            return [self.empty(shape, dtype) for shape, dtype in wanted]
        block = self._take(size)
        if block.offset < block.arena.fresh:
            self._clear(block.arena, block.offset, min(size, block.arena.fresh - block.offset))
        block.arena.fresh = max(block.arena.fresh, block.offset + size)
        alignment = self._device.alignment
        return [
            WebGPUBuffer(block, block.offset + offset, tuple(shape), dtype, alignment)
            for offset, (shape, dtype) in zip(offsets, wanted, strict=True)
        ]

    def reserve(self, nbytes: int) -> None:
        """Make one arena for ``nbytes`` that come, where they would take several and one can be had: see ``_take``."""
        self._check_open()
        size = nbytes + (nbytes >> 8)  # and what alignment adds
        if size > self._device.options.arena_bytes and not any(arena.largest >= nbytes for arena in self._arenas):
            with self._lock, suppress(OutOfMemoryError):
                self._new_arena(size)

    def _check_open(self) -> None:
        if self.closed:
            raise DeviceError("the backend is closed")

    def _take(self, size: int) -> Block:
        """Room in the newest arena that has some: what is made together is used together, and a dispatch costs the
        less, the fewer arenas it binds."""
        with self._lock:
            self._give_back_returned()
            for arena in reversed(self._arenas):
                offset = arena.take(size)
                if offset is not None:
                    return Block(arena, offset, size, self._release)
            arena = self._new_arena(size)
            offset = arena.take(size)
            if offset is None:
                raise OutOfMemoryError(f"no room for {human_bytes(size)}")
            return Block(arena, offset, size, self._release)

    def _new_arena(self, needed: int) -> Arena:
        """An arena for ``needed`` bytes; arenas double in size up to the option's, a larger buffer gets its own."""
        held = self._stats.bytes_allocated
        limit = self._device.options.memory_limit_bytes
        if limit is not None and held + needed > limit:
            raise OutOfMemoryError(
                f"{self._device.info.name}: {human_bytes(needed)} asked for, {human_bytes(held)} of the limit of "
                f"{human_bytes(limit)} are in use"
            )
        if needed > self._device.max_buffer:
            raise OutOfMemoryError(
                f"{self._device.info.name}: {human_bytes(needed)} asked for in one buffer, the device's limit is "
                f"{human_bytes(self._device.max_buffer)}"
            )
        largest = min(self._device.options.arena_bytes, self._device.max_buffer)
        size = max(needed, min(largest, max(_FIRST_ARENA, held)))
        if limit is not None:
            size = max(needed, min(size, limit - held))
        size = round_up(size, BLOCK_ALIGNMENT) if size < self._device.max_buffer else self._device.max_buffer
        self._arenas_made += 1
        try:
            handle = self.create_buffer(size, _ARENA)
        except OutOfMemoryError:  # what the driver has left may still be enough
            size = min(round_up(needed, BLOCK_ALIGNMENT), self._device.max_buffer)
            handle = self.create_buffer(size, _ARENA)
        arena = Arena(handle, size, self._arenas_made)
        self._arenas.append(arena)
        # Else wgpu looks, at each binding of each dispatch for ever, whether it must be zeroed before its use.
        self._clear(arena, 0, size)
        return arena

    def create_buffer(self, size: int, usage: str) -> Any:
        """A device buffer of its own. Raises OutOfMemoryError with the size asked for."""
        with self._device.errors(f"allocating {human_bytes(size)} ({human_bytes(self._stats.bytes_allocated)} in use)"):
            handle = self._device.handle.create_buffer(size=size, usage=usage)
        self._stats.objects += 1
        self._stats.bytes_allocated += size
        return handle

    def _release(self, arena: Arena, offset: int, size: int) -> None:
        """Take back a block that was dropped.

        The garbage collector may drop one at any moment, also in the middle of an allocation: then it waits its turn.
        """
        self._returned.append((arena, offset, size))
        if not self.closed and self._lock.acquire(blocking=False):
            try:
                self._give_back_returned()
            finally:
                self._lock.release()

    def _give_back_returned(self) -> None:
        """Return dropped blocks to their arenas. An arena that nobody uses goes back to the driver, unless it is small
        and the only one: what comes and goes again and again should find its place."""
        while self._returned:
            arena, offset, size = self._returned.popleft()
            arena.give_back(offset, size)
            if not arena.unused:
                continue
            large = arena.size > self._device.options.arena_bytes
            if large or any(other.unused for other in self._arenas if other is not arena):
                self._arenas.remove(arena)
                self.destroy_buffer(arena.handle, arena.size)

    def destroy_buffer(self, handle: Any, size: int) -> None:
        """Give a device buffer back; the driver keeps it until submitted work has finished."""
        if not self.closed:
            handle.destroy()
            self._stats.bytes_allocated -= size

    def _clear(self, arena: Arena, offset: int, size: int) -> None:
        with self._device.errors("clearing a buffer"):
            encoder = self._device.handle.create_command_encoder()
            encoder.clear_buffer(arena.handle, offset, size)
            self._device.queue.submit([encoder.finish()])
        self._stats.submits += 1

    # -- transfers ------------------------------------------------------------------------------------------------
    def write(self, buffer: WebGPUBuffer, array: Array) -> None:
        """Copy ``array`` into ``buffer``, cast to its dtype. Raises DeviceError when the number of elements differs."""
        self._check_open()
        if array.size != buffer.size:
            raise DeviceError(f"write of {array.size} elements into a buffer of {buffer.size} {buffer.dtype}")
        if buffer.size == 0:
            return
        data = np.ascontiguousarray(_cast(array, buffer.dtype)).reshape(-1)
        raw = data.view(np.uint8)
        tail = raw.size % 4
        with self._device.errors(f"writing {human_bytes(raw.size)}"):
            if raw.size > tail:
                self._device.queue.write_buffer(buffer.arena.handle, buffer.offset, raw, 0, raw.size - tail)
        if tail:  # the other elements of the last word may belong to the rest of the buffer that this is a view of
            end = buffer.offset + raw.size - tail
            word = np.array(self.read_range(buffer.arena, end, 4), dtype=np.uint8)
            word[:tail] = raw[raw.size - tail :]
            with self._device.errors("writing the last word of a buffer"):
                self._device.queue.write_buffer(buffer.arena.handle, end, word)

    def read(self, buffer: WebGPUBuffer) -> Array:
        """The contents of ``buffer`` in its shape; waits for the device."""
        raw = self.read_range(buffer.arena, buffer.offset, buffer.nbytes)
        return as_array(raw, buffer)

    def read_range(self, arena: Arena, offset: int, size: int) -> Bytes:
        """Bytes of an arena (multiples of 4)."""
        self._check_open()
        pieces = [
            self._read_piece(arena, offset + start, min(_STAGING_BYTES, size - start))
            for start in range(0, size, _STAGING_BYTES)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)

    def _read_piece(self, arena: Arena, offset: int, size: int) -> Bytes:
        if size > self._staging_size:
            if self._staging is not None:
                self.destroy_buffer(self._staging, self._staging_size)
            self._staging_size = max(64 << 10, 1 << (size - 1).bit_length())
            self._staging = self.create_buffer(self._staging_size, "COPY_DST|MAP_READ")
        with self._device.errors(f"reading {human_bytes(size)}"):
            encoder = self._device.handle.create_command_encoder()
            encoder.copy_buffer_to_buffer(arena.handle, offset, self._staging, 0, size)
            self._device.queue.submit([encoder.finish()])
            self._stats.submits += 1
        return self.map_and_copy(self._staging, size)

    def map_and_copy(self, staging: Any, size: int, submission: int | None = None) -> Bytes:
        """The first ``size`` bytes of a staging buffer, once the device has finished ``submission`` (None: everything).

        Straight calls of the C library: wgpu-py's map_async hands over to a thread that polls, and waits for ever on a
        device that was lost.
        """
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        raw: Any = lib
        cffi: Any = ffi
        with self._device.errors(f"waiting for {human_bytes(size)} of results"):
            self._map_status = None
            raw.wgpuBufferMapAsync(staging._internal, raw.WGPUMapMode_Read, 0, size, self._map_callback()[0])
            self._device.poll(submission)
            if self._map_status == raw.WGPUMapAsyncStatus_Success:
                pointer = raw.wgpuBufferGetMappedRange(staging._internal, 0, size)
                data = np.frombuffer(cffi.buffer(pointer, size), dtype=np.uint8).copy()
                raw.wgpuBufferUnmap(staging._internal)
                return data
        raise DeviceError(f"{self._device.info.name}: results could not be read (map status {self._map_status})")

    def _map_callback(self) -> Any:
        """The one callback through which maps report; made at the first, kept alive here."""
        if self._callback is None:
            from wgpu.backends.wgpu_native._ffi import ffi, lib

            raw: Any = lib
            cffi: Any = ffi

            def mapped(status: int, _message: Any, _1: Any, _2: Any) -> None:
                self._map_status = status

            function = cffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", mapped)
            info = cffi.new("WGPUBufferMapCallbackInfo *")
            info.mode, info.callback = raw.WGPUCallbackMode_AllowProcessEvents, function
            self._callback = (info, function)
        return self._callback[0]

    def close(self) -> None:
        """Destroy every arena and the staging buffer."""
        self.closed = True
        for arena in self._arenas:
            arena.handle.destroy()
        self._arenas.clear()
        if self._staging is not None:
            self._staging.destroy()
            self._staging = None
        self._stats.bytes_allocated = 0


def _cast(array: Array, dtype: DType) -> Array:
    if dtype == "bf16" and array.dtype != np.uint16:
        raise DeviceError(f"a bf16 buffer takes raw uint16 bits, found {array.dtype}")
    return array.astype(NUMPY_DTYPES[dtype], copy=False)
