"""Recorded ops: a native tape, and copies of what is to be fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tritune.backends.base import Array, Buffer, Program
from tritune.errors import DeviceError

from .buffers import CpuBuffer, own_buffer


class CpuProgram(Program):
    """See Program: ops in the order of their recording, then copies of the fetched buffers."""

    def __init__(self, tape: Any, submit: Callable[[Sequence[Program]], None]) -> None:
        self.tape = tape
        self.keep: list[object] = []  # whose memory the tape points into
        self.fetched: dict[tuple[int, int], tuple[CpuBuffer, CpuBuffer]] = {}  # buffer and the copy of it
        self.sealed = False
        self.runs = 0
        self._submit = submit

    def fetch(self, buffer: Buffer) -> None:
        """See Program.fetch. Raises DeviceError after the recording."""
        if self.sealed:
            raise DeviceError("fetch() belongs inside of the recording")
        own = own_buffer(buffer)
        self.fetched.setdefault(_key(own), (own, own))

    def run(self) -> None:
        """See Program.run."""
        self._submit([self])

    def result(self, buffer: Buffer) -> Array:
        """See Program.result. Raises DeviceError when the buffer was not fetched or the program has not run."""
        own = own_buffer(buffer)
        if _key(own) not in self.fetched:
            raise DeviceError(f"result() of a buffer {own.dtype} {own.shape} that the program does not fetch")
        if not self.runs:
            raise DeviceError("result() before the program has run")
        return self.fetched[_key(own)][1].array.reshape(own.shape).copy()


def _key(buffer: CpuBuffer) -> tuple[int, int]:
    return buffer.address, buffer.nbytes
