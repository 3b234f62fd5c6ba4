"""A command buffer in the making, by calls of wgpu's C library: a third of the time of wgpu-py's methods.

Their errors arrive in the error slot that the caller's ``Device.errors`` opened.
"""

from __future__ import annotations

from typing import Any

from .device import Device
from .program import Staging
from .replay import Copies, Items, encoding


class Encoder:
    """Makes command buffers and submits them, one after the other: dispatches that follow each other share a pass."""

    def __init__(self, device: Device) -> None:
        from wgpu.backends.wgpu_native._api import libf
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        self._queue: Any = device.queue._internal
        self._lib: Any = lib
        self._checked_lib: Any = libf
        self._null: Any = ffi.NULL
        self._encode = encoding(device.handle._internal)
        self._commands: Any = ffi.new("WGPUCommandBuffer[1]")
        self._steps: list[Items | Copies] = []
        self._written: list[Staging] = []

    def begin(self) -> None:
        """Begin an empty command buffer; one that was begun before and not submitted is dropped."""
        self._steps, self._written = [], []

    def dispatch(self, items: Items) -> None:
        """Dispatch, behind what was dispatched before."""
        self._steps.append(items)

    def copy(self, staging: Staging) -> None:
        """Copy results into a staging buffer, which is told the submission once there is one."""
        self._steps.append(staging.copies)
        self._written.append(staging)

    def submit(self) -> int:
        """Submit; the number of the submission."""
        raw, encoder = self._lib, self._encode(self._steps)
        try:  # raises what went wrong with the encoder; what is invalid must not be submitted
            self._commands[0] = commands = self._checked_lib.wgpuCommandEncoderFinish(encoder, self._null)
        finally:
            raw.wgpuCommandEncoderRelease(encoder)
        submission = int(raw.wgpuQueueSubmitForIndex(self._queue, 1, self._commands))
        raw.wgpuCommandBufferRelease(commands)
        for staging in self._written:
            staging.submission = submission
        return submission
