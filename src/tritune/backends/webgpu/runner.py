"""Programs encoded and submitted: one command buffer and one submit, whatever the number of ops.

The host runs ahead of the device by ``AHEAD`` submits: the next one is there when the device has done one, and what a
user sees or interrupts is no older than that.

A submit that would run for long is cut into several, one after the other: operating systems reset a GPU that does not
answer for about two seconds, and it draws nobody's screen meanwhile. Between two dispatches of a pass WebGPU itself
orders writes before reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tritune.backends.base import Stats
from tritune.errors import DeviceError

from .device import Device
from .memory import Memory
from .prepare import Dispatch
from .profile import Profiler, bytes_of
from .program import Part, Staging, WebGPUProgram
from .replay import Items, raw_items, replayer

AHEAD = 2
"""Submits that the device has not finished when another one is made."""

DISPATCH_SECONDS = 2e-6
"""What a dispatch costs however little it does."""


class Runner:
    """Encodes and submits."""

    def __init__(self, device: Device, memory: Memory, stats: Stats) -> None:
        from wgpu.backends.wgpu_native._api import libf
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        self._device = device
        self.memory = memory
        self._stats = stats
        self._lib: Any = lib
        self._checked_lib: Any = libf
        self._ffi: Any = ffi
        self._replay = replayer()
        self._commands: Any = self._ffi.new("WGPUCommandBuffer[1]")
        self._in_flight: deque[int] = deque()
        self.profiler: Profiler | None = None
        """Takes the times of what is submitted, while there is one."""

    def check(self) -> None:
        """Raise when there is no device any more: closed (DeviceError) or lost (DeviceLostError)."""
        if self.memory.closed:
            raise DeviceError("the backend is closed")
        self._device.check("reading results")

    def run_now(self, dispatch: Dispatch) -> None:
        """Run one dispatch in a submit of its own."""
        with self._device.errors(f"running kernel {dispatch.kernel}"):
            encoder = self._begin()
            self._encode(encoder, raw_items([dispatch]))
            self._finish(encoder, [])
        self._stats.submits += 1

    def submit(self, programs: Sequence[WebGPUProgram]) -> None:
        """Run programs in order, in one command buffer and one submit, or in as many as the limit of seconds asks for.

        Several count as one in ``stats.submits``; ``stats.queue_submits`` counts each.
        """
        if self.memory.closed:
            raise DeviceError("the backend is closed")
        if not all(program.sealed for program in programs):
            raise DeviceError("a program can run once its recording has ended")
        with self._device.errors("running a program"):
            while len(self._in_flight) >= AHEAD:
                self._device.wait_for(self._in_flight.popleft())
            self._in_flight.append(self._submit(programs))
        self._stats.submits += 1

    def _submit(self, programs: Sequence[WebGPUProgram]) -> int:
        """Encode and submit; the number of the (last) submission."""
        encoder, seconds, limit = self._begin(), 0.0, self._device.submit_seconds
        written: list[Staging] = []  # by the current encoder
        for program in programs:
            if self.profiler is not None:
                self._finish(encoder, written)
                self.profiler.run(program)
                encoder = self._begin()
            for part in () if self.profiler is not None else program.parts:
                if seconds > 0 and seconds + part.seconds > limit:
                    self._finish(encoder, written)
                    encoder, seconds = self._begin(), 0.0
                self._encode(encoder, part.items)
                seconds += part.seconds
            staging = program.next_staging()
            if staging is not None:
                self._copy_results(encoder, program, staging)
                written.append(staging)
        return self._finish(encoder, written)

    # -- the calls of wgpu's C library: a third of the time of wgpu-py's methods. Their errors arrive in the error slot
    # that the caller's ``Device.errors`` opened.
    def _begin(self) -> Any:
        return self._lib.wgpuDeviceCreateCommandEncoder(self._device.handle._internal, self._ffi.NULL)

    def _finish(self, encoder: Any, written: list[Staging]) -> int:
        """Submit; the number of the submission, which the staging buffers written by it are told."""
        raw = self._lib
        try:  # raises what went wrong with the encoder; what is invalid must not be submitted
            self._commands[0] = commands = self._checked_lib.wgpuCommandEncoderFinish(encoder, self._ffi.NULL)
        finally:
            raw.wgpuCommandEncoderRelease(encoder)
        submission = int(raw.wgpuQueueSubmitForIndex(self._device.queue._internal, 1, self._commands))
        raw.wgpuCommandBufferRelease(commands)
        self._stats.queue_submits += 1
        for staging in written:
            staging.submission = submission
        written.clear()
        return submission

    def _copy_results(self, encoder: Any, program: WebGPUProgram, staging: Staging) -> None:
        copy, target = self._lib.wgpuCommandEncoderCopyBufferToBuffer, staging.handle._internal
        for buffer, offset in program.fetched.values():
            copy(encoder, buffer.arena.handle._internal, buffer.offset, target, offset, max(buffer.nbytes, 4))

    def _encode(self, encoder: Any, items: Items) -> None:
        """One compute pass."""
        raw = self._lib
        target = raw.wgpuCommandEncoderBeginComputePass(encoder, self._ffi.NULL)
        self._replay(target, items)
        raw.wgpuComputePassEncoderEnd(target)
        raw.wgpuComputePassEncoderRelease(target)

    # -- how long it takes --------------------------------------------------------------------------------------------
    def parts_of(self, program: WebGPUProgram) -> list[Part]:
        """The dispatches of a program in parts that stay below the limit of seconds, by estimate."""
        parts: list[Part] = []
        pending: list[Dispatch] = []
        total = 0.0
        for dispatch, seconds in zip(program.dispatches, self.estimates(program), strict=True):
            if pending and total + seconds > self._device.submit_seconds:
                parts.append(Part(raw_items(pending), total))
                pending, total = [], 0.0
            pending.append(dispatch)
            total += seconds
        return [*parts, Part(raw_items(pending), total)] if pending else parts

    def estimates(self, program: WebGPUProgram) -> list[float]:
        """Seconds of each dispatch: an op takes its bytes or its operations at the device's rates, whichever is longer,
        in equal shares of its dispatches."""
        rates = self._device.rates
        seconds = [DISPATCH_SECONDS] * len(program.dispatches)
        for op in program.ops:
            dispatches = program.dispatches[op.start : op.end]
            if dispatches:
                whole = max(op.work.flops / rates.flops, bytes_of(op, dispatches) / rates.nbytes)
                for number in range(op.start, op.end):
                    seconds[number] += whole / len(dispatches)
        return seconds
