"""Programs encoded and submitted: one command buffer, one pass and one submit, whatever the number of ops.

The host runs ahead of the device by ``AHEAD`` submits: the next one is there when the device has done one, and what a
user sees or interrupts is no older than that.

A submit that would run for long is cut into several, one after the other: operating systems reset a GPU that does not
answer for about two seconds, and it draws nobody's screen meanwhile. A dispatch is never cut, but a product of matrices
that would take longer is several dispatches at once (see ops_gemm.py). Between two dispatches of a pass WebGPU itself
orders writes before reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tritune.backends.base import Stats
from tritune.errors import DeviceError

from .commands import Encoder
from .device import Device
from .memory import Memory
from .prepare import Dispatch
from .profile import Profiler, bytes_of
from .program import Part, Staging, WebGPUProgram
from .replay import Copies, Items, raw_items

AHEAD = 2
"""Submits that the device has not finished when another one is made."""

DISPATCH_SECONDS = 2e-6
"""What a dispatch costs however little it does."""


class Runner:
    """Encodes and submits."""

    def __init__(self, device: Device, memory: Memory, stats: Stats) -> None:
        self._device = device
        self.memory = memory
        self._stats = stats
        self._encoder = Encoder(device)
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
            self._send([raw_items([dispatch])])
        self._stats.submits += 1

    def submit(self, programs: Sequence[WebGPUProgram]) -> None:
        """Run programs in order, in one command buffer and one submit, or in as many as the limit of seconds asks for.

        Several count as one in ``stats.submits``; ``stats.queue_submits`` counts each.
        """
        if self.memory.closed:
            raise DeviceError("the backend is closed")
        for program in programs:
            if not program.sealed:
                raise DeviceError("a program can run once its recording has ended")
        with self._device.errors("running a program"):
            while len(self._in_flight) >= AHEAD:
                self._device.wait_for(self._in_flight.popleft())
            self._in_flight.append(self._submit(programs))
        self._stats.submits += 1

    def _submit(self, programs: Sequence[WebGPUProgram]) -> int:
        """Encode and submit; the number of the (last) submission."""
        limit, seconds = self._device.submit_seconds, 0.0
        steps: list[Items | Copies] = []
        written: list[Staging] = []
        for program in programs:
            if self.profiler is not None:
                self._send(steps, written)
                steps, written = [], []
                self.profiler.run(program)
            for part in () if self.profiler is not None else program.parts:
                if seconds > 0 and seconds + part.seconds > limit:
                    self._send(steps, written)
                    steps, written, seconds = [], [], 0.0
                steps.append(part.items)
                seconds += part.seconds
            staging = program.next_staging()
            if staging is not None:
                steps.append(staging.copies)
                written.append(staging)
        return self._send(steps, written)

    def _send(self, steps: Sequence[Items | Copies], written: Sequence[Staging] = ()) -> int:
        self._stats.queue_submits += 1
        return self._encoder.submit(steps, written)

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
            whole = max(op.work.flops / rates.flops, bytes_of(op, program.dispatches_of(op)) / rates.nbytes)
            for number in op.numbers:
                seconds[number] += whole / len(op.numbers)
        return seconds
