"""A command buffer in the making, by calls of wgpu's C library: a third of the time of wgpu-py's methods.

Their errors arrive in the error slot that the caller's ``Device.errors`` opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .device import Device
from .program import Copy, Staging
from .replay import Items, replayer


class Encoder:
    """Makes command buffers and submits them, one after the other: dispatches that follow each other share a pass."""

    def __init__(self, device: Device) -> None:
        from wgpu.backends.wgpu_native._api import libf
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        self._device = device
        self._lib: Any = lib
        self._checked_lib: Any = libf
        self._null: Any = ffi.NULL
        self._replay: Callable[[Any, Items], None] = replayer()
        self._commands: Any = ffi.new("WGPUCommandBuffer[1]")
        self._encoder: Any = None
        self._pass: Any = None
        self._written: list[Staging] = []

    def begin(self) -> None:
        """Begin an empty command buffer; one that was begun before and not submitted is dropped."""
        self._drop()
        self._encoder = self._lib.wgpuDeviceCreateCommandEncoder(self._device.handle._internal, self._null)

    def dispatch(self, items: Items) -> None:
        """Dispatch, behind what was dispatched before."""
        if self._pass is None:
            self._pass = self._lib.wgpuCommandEncoderBeginComputePass(self._encoder, self._null)
        self._replay(self._pass, items)

    def copy(self, copies: Sequence[Copy], staging: Staging) -> None:
        """Copy results into a staging buffer, which is told the submission once there is one."""
        self._end_pass()
        copy, target = self._lib.wgpuCommandEncoderCopyBufferToBuffer, staging.handle._internal
        for source, start, offset, size in copies:
            copy(self._encoder, source._internal, start, target, offset, size)
        self._written.append(staging)

    def submit(self) -> int:
        """Submit; the number of the submission."""
        self._end_pass()
        raw = self._lib
        try:  # raises what went wrong with the encoder; what is invalid must not be submitted
            self._commands[0] = commands = self._checked_lib.wgpuCommandEncoderFinish(self._encoder, self._null)
        finally:
            written = self._written
            self._drop()
        submission = int(raw.wgpuQueueSubmitForIndex(self._device.queue._internal, 1, self._commands))
        raw.wgpuCommandBufferRelease(commands)
        for staging in written:
            staging.submission = submission
        return submission

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._lib.wgpuComputePassEncoderEnd(self._pass)
            self._lib.wgpuComputePassEncoderRelease(self._pass)
            self._pass = None

    def _drop(self) -> None:
        self._end_pass()
        if self._encoder is not None:
            self._lib.wgpuCommandEncoderRelease(self._encoder)
            self._encoder = None
        self._written = []
