"""Recorded dispatches, ready to be encoded, and what their runs bring back to the host.

Everything that a run needs (pipelines, bind groups, staging) is made while recording.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritune.backends.base import Array, Buffer, Program
from tritune.errors import DeviceError

from .buffers import BLOCK_ALIGNMENT, Bytes, WebGPUBuffer, as_array, own_buffer, round_up
from .prepare import Dispatch
from .replay import Copies, Copy, Items, raw_copies
from .work import RecordedOp, Work

if TYPE_CHECKING:
    from .runner import Runner

KEPT_RUNS = 2
"""Runs whose results are kept: the last one, and the one before it, so that the host can run ahead."""


@dataclass(frozen=True)
class Part:
    """Dispatches that are submitted together."""

    items: Items
    seconds: float  # an estimate


@dataclass
class Staging:
    """Where a run's results go, and what is known of them."""

    handle: Any
    copies: Copies
    submission: int = -1  # the one that writes it, -1 = none
    contents: Bytes | None = None  # of that run, once they were asked for


class WebGPUProgram(Program):
    """See Program: dispatches in the order of their recording, then copies of the fetched buffers into staging."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.dispatches: list[Dispatch] = []
        self.ops: list[RecordedOp] = []
        self.op: RecordedOp | None = None  # that is being recorded
        self.parts: list[Part] = []
        self.fetched: dict[tuple[int, int, int], WebGPUBuffer] = {}
        self.copies: list[Copy] = []
        self._offsets: dict[tuple[int, int, int], int] = {}  # in staging
        self._staging: list[Staging] = []  # the next run's first
        self._staging_bytes = 0
        self.sealed = False

    # -- recording ----------------------------------------------------------------------------------------------------
    @contextmanager
    def noting(self, name: str, work: Work) -> Generator[None]:
        """The dispatches recorded inside are those of an op."""
        op = RecordedOp(name, work)
        self.ops.append(op)
        with self.counted_as(op):
            yield

    @contextmanager
    def counted_as(self, op: RecordedOp | None) -> Generator[None]:
        """The dispatches recorded inside are those of ``op``, which waited for the one that is being recorded."""
        recorded, self.op = self.op, op
        try:
            yield
        finally:
            self.op = recorded

    def counted_with(self, op: RecordedOp | None) -> None:
        """What is recorded now does the work of ``op`` too, unless that has dispatches of its own, which count it."""
        if self.op is not None and op is not None and not op.numbers:
            self.op.work += op.work

    def add(self, dispatch: Dispatch) -> None:
        """Record a dispatch."""
        if self.op is not None:
            self.op.numbers.append(len(self.dispatches))
        self.dispatches.append(dispatch)

    def dispatches_of(self, op: RecordedOp) -> list[Dispatch]:
        """Those of one of ``ops``."""
        return [self.dispatches[number] for number in op.numbers]

    def fetch(self, buffer: Buffer) -> None:
        """See Program.fetch. Raises DeviceError after the recording."""
        if self.sealed:
            raise DeviceError("fetch() belongs inside of the recording")
        bound = own_buffer(buffer)
        self.fetched[_key(bound)] = bound

    def seal(self) -> None:
        """End the recording: make the staging buffers, look up the raw ids."""
        self._plan_copies()
        if self._staging_bytes:
            create = self._runner.memory.create_buffer
            handles = [create(self._staging_bytes, "COPY_DST|MAP_READ") for _ in range(KEPT_RUNS)]
            self._staging = [Staging(handle, raw_copies(self.copies, handle)) for handle in handles]
        self.parts = self._runner.parts_of(self)
        self.sealed = True

    def _plan_copies(self) -> None:
        """One copy for fetched buffers that lie side by side, as those of one block may."""
        for key, buffer in sorted(self.fetched.items()):
            last, end = self.copies[-1] if self.copies else None, buffer.offset + max(buffer.nbytes, 4)
            if last is not None and last.source is buffer.arena.handle and buffer.offset - last.end <= BLOCK_ALIGNMENT:
                self.copies[-1] = last = last._replace(size=max(last.end, end) - last.start)
            else:
                size = end - buffer.offset
                last = Copy(buffer.arena.handle, buffer.offset, round_up(self._staging_bytes, 8), size)
                self.copies.append(last)
            self._offsets[key] = last.offset + buffer.offset - last.start
            self._staging_bytes = last.offset + last.size

    # -- running ------------------------------------------------------------------------------------------------------
    def next_staging(self) -> Staging | None:
        """Where the results of a run that begins go, if there are any; the runner tells it the submission."""
        if not self._staging:
            return None
        self._staging.append(self._staging.pop(0))
        self._staging[-1].submission, self._staging[-1].contents = -1, None
        return self._staging[-1]

    def run(self) -> None:
        """See Program.run."""
        self._runner.submit([self])

    def result(self, buffer: Buffer) -> Array:
        """See Program.result. Raises DeviceError when the buffer was not fetched or the program has not run."""
        return self._result(buffer, 1)

    def previous_result(self, buffer: Buffer) -> Array:
        """See Program.previous_result."""
        return self._result(buffer, 2)

    def _result(self, buffer: Buffer, back: int) -> Array:
        bound = own_buffer(buffer)
        if _key(bound) not in self.fetched:
            raise DeviceError(f"result() of a buffer {bound.dtype} {bound.shape} that the program does not fetch")
        self._runner.check()
        staging = self._staging[-back]
        if staging.submission < 0:
            raise DeviceError("result() before the program has run")
        if staging.contents is None:
            staging.contents = self._runner.memory.map_and_copy(staging.handle, self._staging_bytes, staging.submission)
        offset = self._offsets[_key(bound)]
        return as_array(staging.contents[offset : offset + bound.nbytes], bound).copy()

    def close(self) -> None:
        """Free what the program holds on the device; happens when it is dropped, or when the backend closes."""
        for staging in self._staging:
            self._runner.memory.destroy_buffer(staging.handle, self._staging_bytes)
        self._staging.clear()
        self.dispatches.clear()
        self.ops.clear()
        self.parts.clear()
        self.copies.clear()

    def __del__(self) -> None:
        self.close()


def _key(buffer: WebGPUBuffer) -> tuple[int, int, int]:
    return buffer.arena.serial, buffer.offset, buffer.nbytes
