"""Recorded dispatches, and how they are encoded: one command buffer and one submit, whatever the number of ops.

Everything that a run needs (pipelines, bind groups, staging) is made while recording. A run makes only its command
encoder and command buffer. Between two dispatches of a pass WebGPU itself orders writes before reads.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from tritune.backends.base import Array, Buffer, Program, Stats
from tritune.errors import DeviceError

from .buffers import Bytes, Memory, WebGPUBuffer, as_array, human_bytes, round_up
from .device import Device
from .shaders import MAX_STORAGE_BUFFERS, Shaders

_UNIFORM_SLOT = 256  # bytes; the largest offset alignment that WebGPU allows a device to ask for
_UNIFORM_CHUNK = 64 << 10
_CACHED_GROUPS = 4096  # bind groups kept for ops outside programs; a program keeps its own alive


@dataclass(frozen=True)
class Dispatch:
    """One prepared dispatch, and what it needs alive."""

    kernel: str
    pipeline: Any
    group: Any
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
        bound = tuple(checked_buffers(kernel, buffers, self._device.max_binding))
        pipeline = self.shaders.pipeline(kernel, variant, len(bound))
        return Dispatch(kernel, pipeline, self._group(pack_params(params), bound), self._fold(kernel, grid), bound)

    def _group(self, block: bytes, buffers: tuple[WebGPUBuffer, ...]) -> Any:
        key = (block, tuple((b.arena.serial, b.offset, b.nbytes) for b in buffers))
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key]
        uniform, offset = self.parameters.slot(block)
        resources = [(uniform, offset, len(block))] + [(b.arena.handle, b.offset, max(b.nbytes, 4)) for b in buffers]
        entries = [
            {"binding": i, "resource": {"buffer": handle, "offset": start, "size": size}}
            for i, (handle, start, size) in enumerate(resources)
        ]
        with self._device.errors("making a bind group"):
            group = self._device.handle.create_bind_group(layout=self.shaders.layout(len(buffers))[0], entries=entries)
        self._stats.objects += 1
        self._groups[key] = group
        if len(self._groups) > _CACHED_GROUPS:
            self._groups.popitem(last=False)
        return group

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


class WebGPUProgram(Program):
    """See Program: dispatches in the order of their recording, then copies of the fetched buffers into staging."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.dispatches: list[Dispatch] = []
        self.encoded: list[tuple[Any, Any, int, int, int]] = []  # what the loop over dispatches needs, as raw ids
        self.fetched: dict[tuple[int, int, int], tuple[WebGPUBuffer, int]] = {}  # buffer and its offset in staging
        self.staging: Any = None
        self._staging_bytes = 0
        self._results: Bytes | None = None
        self._runs = 0
        self.sealed = False

    def fetch(self, buffer: Buffer) -> None:
        """See Program.fetch. Raises DeviceError after the recording."""
        if self.sealed:
            raise DeviceError("fetch() belongs inside of the recording")
        bound = own_buffer(buffer)
        if _key(bound) not in self.fetched:
            self.fetched[_key(bound)] = (bound, self._staging_bytes)
            self._staging_bytes += round_up(max(bound.nbytes, 4), 8)

    def seal(self) -> None:
        """End the recording: make the staging buffer, look up the raw ids."""
        if self._staging_bytes:
            self.staging = self._runner.memory.create_buffer(self._staging_bytes, "COPY_DST|MAP_READ")
        self.encoded = [(d.pipeline._internal, d.group._internal, *d.grid) for d in self.dispatches]
        self.sealed = True

    def run(self) -> None:
        """See Program.run."""
        self._runner.submit([self])

    def ran(self) -> None:
        """Told by the runner: the staging buffer is being written anew."""
        self._runs += 1
        self._results = None

    def result(self, buffer: Buffer) -> Array:
        """See Program.result. Raises DeviceError when the buffer was not fetched or the program has not run."""
        bound = own_buffer(buffer)
        if _key(bound) not in self.fetched:
            raise DeviceError(f"result() of a buffer {bound.dtype} {bound.shape} that the program does not fetch")
        self._runner.check()
        if not self._runs:
            raise DeviceError("result() before the program has run")
        if self._results is None:
            self._results = self._runner.memory.map_and_copy(self.staging, self._staging_bytes)
        _, offset = self.fetched[_key(bound)]
        return as_array(self._results[offset : offset + bound.nbytes], bound).copy()

    def close(self) -> None:
        """Free what the program holds on the device; the backend does it when it closes."""
        if self.staging is not None:
            self.staging.destroy()
            self.staging = None
        self.dispatches.clear()
        self.encoded.clear()


class Runner:
    """Encodes and submits."""

    def __init__(self, device: Device, memory: Memory, stats: Stats) -> None:
        self._device = device
        self.memory = memory
        self._stats = stats

    def check(self) -> None:
        """Raise when there is no device any more: closed (DeviceError) or lost (DeviceLostError)."""
        if self.memory.closed:
            raise DeviceError("the backend is closed")
        self._device.check("reading results")

    def run_now(self, dispatch: Dispatch) -> None:
        """Run one dispatch in a submit of its own."""
        with self._device.errors(f"running kernel {dispatch.kernel}"):
            encoder = self._device.handle.create_command_encoder()
            item = (dispatch.pipeline._internal, dispatch.group._internal, *dispatch.grid)
            self._encode(encoder, [item])
            self._device.queue.submit([encoder.finish()])
        self._stats.submits += 1

    def submit(self, programs: Sequence[WebGPUProgram]) -> None:
        """Run programs in order, in one command buffer and one submit.

        A submit that would run for seconds on a slow GPU should be split here (operating systems reset a GPU after
        about two); the split needs an estimate of the dispatches' times, which does not exist yet.
        """
        if self.memory.closed:
            raise DeviceError("the backend is closed")
        if not all(program.sealed for program in programs):
            raise DeviceError("a program can run once its recording has ended")
        with self._device.errors("running a program"):
            encoder = self._device.handle.create_command_encoder()
            for program in programs:
                self._encode(encoder, program.encoded)
                for buffer, offset in program.fetched.values():
                    encoder.copy_buffer_to_buffer(
                        buffer.arena.handle, buffer.offset, program.staging, offset, max(buffer.nbytes, 4)
                    )
            self._device.queue.submit([encoder.finish()])
        self._stats.submits += 1
        for program in programs:
            program.ran()

    def _encode(self, encoder: Any, items: Sequence[tuple[Any, Any, int, int, int]]) -> None:
        """One compute pass. The calls go to wgpu's C library: 1.1 µs a dispatch, 3.5 µs through wgpu-py's methods.

        Their errors arrive in the error slot that the caller's ``Device.errors`` opened.
        """
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        raw: Any = lib
        null: Any = ffi.NULL
        set_pipeline = raw.wgpuComputePassEncoderSetPipeline
        set_group = raw.wgpuComputePassEncoderSetBindGroup
        dispatch = raw.wgpuComputePassEncoderDispatchWorkgroups
        compute_pass = encoder.begin_compute_pass()
        target = compute_pass._internal
        current: Any = None
        for pipeline, group, x, y, z in items:
            if pipeline != current:
                set_pipeline(target, pipeline)
                current = pipeline
            set_group(target, 0, group, 0, null)
            dispatch(target, x, y, z)
        compute_pass.end()


def pack_params(params: Sequence[int | float]) -> bytes:
    """Integers as u32 (negative ones as i32), floats as f32, padded to 16 bytes."""
    words = [int(v) & 0xFFFFFFFF if isinstance(v, (Integral, np.bool_)) else float(v) for v in params]
    block = b"".join(struct.pack("<I" if isinstance(word, int) else "<f", word) for word in words)
    if len(block) > _UNIFORM_SLOT:
        raise DeviceError(f"{len(params)} parameters, at most {_UNIFORM_SLOT // 4} fit")
    return block.ljust(round_up(max(len(block), 16), 16), b"\0")


def own_buffer(buffer: Buffer) -> WebGPUBuffer:
    """``buffer`` as one of this backend. Raises DeviceError for another's."""
    if not isinstance(buffer, WebGPUBuffer):
        raise DeviceError(f"a buffer of another backend ({type(buffer).__name__}) was given to WebGPU")
    return buffer


def checked_buffers(kernel: str, buffers: Sequence[Buffer], max_binding: int) -> list[WebGPUBuffer]:
    """The buffers of a dispatch, checked: at most 8, no two ranges overlap, none is larger than a binding may be."""
    bound = [own_buffer(buffer) for buffer in buffers]
    if len(bound) > MAX_STORAGE_BUFFERS:
        raise DeviceError(f"kernel {kernel} binds {len(bound)} buffers, WebGPU promises {MAX_STORAGE_BUFFERS}")
    for i, a in enumerate(bound):
        if a.nbytes > max_binding:
            raise DeviceError(
                f"kernel {kernel}: a buffer {a.dtype} {a.shape} of {human_bytes(a.nbytes)} does not fit the device's "
                f"binding limit of {human_bytes(max_binding)}"
            )
        for j, b in enumerate(bound[:i]):
            if a.arena is b.arena and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes:
                raise DeviceError(f"kernel {kernel}: buffers {j} and {i} overlap, WebGPU forbids to bind both")
    return bound


def _key(buffer: WebGPUBuffer) -> tuple[int, int, int]:
    return buffer.arena.serial, buffer.offset, buffer.nbytes
