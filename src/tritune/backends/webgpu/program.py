"""Recorded dispatches, and how they are encoded: one command buffer and one submit, whatever the number of ops.

Everything that a run needs (pipelines, bind groups, staging) is made while recording. A run makes only its command
encoder and command buffer. Between two dispatches of a pass WebGPU itself orders writes before reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritune.backends.base import Array, Buffer, Program, Stats
from tritune.errors import DeviceError

from .buffers import Bytes, WebGPUBuffer, as_array, own_buffer, round_up
from .device import Device
from .memory import Memory
from .prepare import Dispatch


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
        """Free what the program holds on the device; happens when it is dropped, or when the backend closes."""
        if self.staging is not None:
            self._runner.memory.destroy_buffer(self.staging, self._staging_bytes)
            self.staging = None
        self.dispatches.clear()
        self.encoded.clear()

    def __del__(self) -> None:
        self.close()


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


def _key(buffer: WebGPUBuffer) -> tuple[int, int, int]:
    return buffer.arena.serial, buffer.offset, buffer.nbytes
