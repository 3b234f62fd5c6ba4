"""Command buffers made and submitted, by calls of wgpu's C library: a third of the time of wgpu-py's methods.

Their errors arrive in the error slot that the caller's ``Device.errors`` opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .device import Device
from .program import Staging
from .replay import Copies, Items, encoding


class Encoder:
    """Makes command buffers and submits them, one after the other."""

    def __init__(self, device: Device) -> None:
        from wgpu.backends.wgpu_native._api import libf
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        raw: Any = lib
        checked: Any = libf  # raises what goes wrong
        self._queue: Any = device.queue._internal
        self._null: Any = ffi.NULL
        self._encode = encoding(device.handle._internal)
        self._finish: Any = checked.wgpuCommandEncoderFinish
        self._release_encoder: Any = raw.wgpuCommandEncoderRelease
        self._submit: Any = raw.wgpuQueueSubmitForIndex
        self._release_commands: Any = raw.wgpuCommandBufferRelease
        self._commands: Any = ffi.new("WGPUCommandBuffer[1]")

    def submit(self, steps: Sequence[Items | Copies], written: Sequence[Staging] = ()) -> int:
        """Submit; the number of the submission. Dispatches that follow each other share a pass.

        written: what the steps copy into, which is told the submission.
        """
        encoder = self._encode(steps)
        try:  # what is invalid must not be submitted
            self._commands[0] = commands = self._finish(encoder, self._null)
        finally:
            self._release_encoder(encoder)
        submission = int(self._submit(self._queue, 1, self._commands))
        self._release_commands(commands)
        for staging in written:
            staging.submission = submission
        return submission
