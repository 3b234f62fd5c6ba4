"""Recorded dispatches, ready to be encoded, and what their runs bring back to the host.

Everything that a run needs (pipelines, bind groups, staging) is made while recording.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritune.backends.base import Array, Buffer, Program
from tritune.errors import DeviceError

from .buffers import Bytes, WebGPUBuffer, as_array, own_buffer, round_up
from .prepare import Dispatch
from .replay import Items
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
    submission: int = -1  # the one that writes it, -1 = none
    contents: Bytes | None = None  # of that run, once they were asked for


class WebGPUProgram(Program):
    """See Program: dispatches in the order of their recording, then copies of the fetched buffers into staging."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.dispatches: list[Dispatch] = []
        self.ops: list[RecordedOp] = []
        self.inside_op = False
        self.parts: list[Part] = []
        self.fetched: dict[tuple[int, int, int], tuple[WebGPUBuffer, int]] = {}  # buffer and its offset in staging
        self._staging: list[Staging] = []  # the next run's first
        self._staging_bytes = 0
        self.sealed = False

    # -- recording ----------------------------------------------------------------------------------------------------
    @contextmanager
    def noting(self, name: str, work: Work) -> Generator[None]:
        """The dispatches recorded inside are those of an op."""
        start, self.inside_op = len(self.dispatches), True
        try:
            yield
        finally:
            self.inside_op = False
        self.ops.append(RecordedOp(name, start, len(self.dispatches), work))

    def op_of(self, dispatch: int) -> RecordedOp | None:
        """The op that a dispatch belongs to, if it belongs to one."""
        found = bisect_right(self.ops, dispatch, key=lambda op: op.start) - 1
        return self.ops[found] if found >= 0 and dispatch < self.ops[found].end else None

    def fetch(self, buffer: Buffer) -> None:
        """See Program.fetch. Raises DeviceError after the recording."""
        if self.sealed:
            raise DeviceError("fetch() belongs inside of the recording")
        bound = own_buffer(buffer)
        if _key(bound) not in self.fetched:
            self.fetched[_key(bound)] = (bound, self._staging_bytes)
            self._staging_bytes += round_up(max(bound.nbytes, 4), 8)

    def seal(self) -> None:
        """End the recording: make the staging buffers, look up the raw ids."""
        if self._staging_bytes:
            create = self._runner.memory.create_buffer
            self._staging = [Staging(create(self._staging_bytes, "COPY_DST|MAP_READ")) for _ in range(KEPT_RUNS)]
        self.parts = self._runner.parts_of(self)
        self.sealed = True

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
        _, offset = self.fetched[_key(bound)]
        return as_array(staging.contents[offset : offset + bound.nbytes], bound).copy()

    def close(self) -> None:
        """Free what the program holds on the device; happens when it is dropped, or when the backend closes."""
        for staging in self._staging:
            self._runner.memory.destroy_buffer(staging.handle, self._staging_bytes)
        self._staging.clear()
        self.dispatches.clear()
        self.ops.clear()
        self.parts.clear()

    def __del__(self) -> None:
        self.close()


def _key(buffer: WebGPUBuffer) -> tuple[int, int, int]:
    return buffer.arena.serial, buffer.offset, buffer.nbytes
