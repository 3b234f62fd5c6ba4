"""What every op of the CPU backend stands on: memory, programs and ``call``. The ops are mixins over it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import NUMPY_DTYPES, Array, Backend, Buffer, DType, Program, Stats, Table
from tritune.backends.profile import Profile
from tritune.errors import DeviceError
from tritune.formats.file_bytes import RowSource, row_blocks

from .buffers import Block, CpuBuffer, CpuTable, cast, own_buffer
from .program import CpuProgram


class CpuCore(Backend):
    """Memory and programs of the CPU; still without ops."""

    def __init__(self, native: Any, threads: int, isa: str) -> None:
        self.name = "cpu"
        self.threads = threads
        self.isa = isa
        self.f16_adapters = isa != "portable"  # which has no instruction that widens them
        self.description = f"CPU ({isa}, {threads} thread{'s' if threads > 1 else ''})"
        self.stats = Stats()
        self.native = native
        self.closed = False
        self._pool: Any = native.Pool(threads, isa)
        self._now: Any = native.Tape()  # the one op of a call outside of a recording
        self._recording: CpuProgram | None = None
        self._scratch: dict[str, CpuBuffer] = {}
        self._profile: Profile | None = None

    def call(self, op: str, *arguments: object) -> None:
        """Run native op ``op``, or record it inside of ``record``.

        Arguments in the order of the C++ function: buffers and whatever else has an ``address`` as that address, None
        as a null pointer, numbers as they are. A program keeps them alive. Shapes and dtypes are the caller's to check
        (``expect``): native code does not see them.
        """
        if self.closed:
            raise DeviceError("the backend is closed")
        values = [0 if item is None else getattr(item, "address", item) for item in arguments]
        function = getattr(self.native, op)
        if self._recording is not None:
            function(self._recording.tape, *values)
            self._recording.keep.append(arguments)
            return
        self._now.clear()
        function(self._now, *values)
        self.native.run(self._pool, [self._now])
        self.stats.submits += 1

    def expect(self, op: str, name: str, buffer: Buffer, dtype: DType, *shape: int) -> None:
        """Refuse a buffer of another backend, dtype, or number of elements than ``shape`` has. Raises DeviceError."""
        own = own_buffer(buffer)
        if own.dtype != dtype or own.size != int(np.prod(shape, dtype=np.int64)):
            wanted = f"{dtype} [{', '.join(map(str, shape))}]"
            raise DeviceError(f"{op}: {name} is {own.dtype} {list(own.shape)}, expected {wanted}")

    def scratch(self, name: str, count: int, dtype: DType = "f32") -> CpuBuffer:
        """Memory for inside of an op, at least ``count`` elements: one for each name and dtype, shared by all calls.

        Ask while recording; a program that was recorded before keeps the smaller one that it was given.
        """
        key = f"{name} {dtype}"
        held = self._scratch.get(key)
        if held is None or held.size < count:
            held = self._scratch[key] = self.empty((count,), dtype)
        return held

    # -- memory ---------------------------------------------------------------------------------------------------
    def empty(self, shape: tuple[int, ...], dtype: DType = "f32") -> CpuBuffer:
        """See Backend.empty."""
        if self.closed:
            raise DeviceError("the backend is closed")
        count = int(np.prod(shape, dtype=np.int64))
        block = Block(count * np.dtype(NUMPY_DTYPES[dtype]).itemsize, self._released)
        self.stats.objects += 1
        self.stats.bytes_allocated += block.nbytes
        return CpuBuffer(block, 0, shape, dtype)

    def _released(self, nbytes: int) -> None:
        self.stats.bytes_allocated -= nbytes

    def write(self, buffer: Buffer, array: Array) -> None:
        """See Backend.write. It happens now, also while a program is being recorded."""
        own = own_buffer(buffer)
        if array.size != own.size:
            raise DeviceError(f"write of {array.size} elements into a buffer of {own.size} {own.dtype}")
        own.array.reshape(-1)[...] = cast(array, own.dtype).reshape(-1)

    def read(self, buffer: Buffer) -> Array:
        """See Backend.read."""
        return own_buffer(buffer).array.copy()

    def table(self, rows: RowSource, dtype: DType, scales: NDArray[np.float32] | None = None) -> Table:
        """See Backend.table. Raises DeviceError when scales are missing, or not wanted."""
        if (dtype == "i8") != (scales is not None):
            raise DeviceError(f"a table of {dtype} {'without' if scales is None else 'with'} scales")
        buffer = self.empty((rows.shape[0], rows.shape[1]), dtype)
        for part in row_blocks(rows.shape[0], rows.shape[1] * buffer.array.itemsize):
            buffer.array[part] = cast(rows[part], dtype)
        return CpuTable(buffer, None if scales is None else self.upload(scales))

    def close(self) -> None:
        """See Backend.close. Closing twice is harmless."""
        self.closed = True
        self._pool = None  # ends its threads
        self._scratch.clear()

    # -- programs -------------------------------------------------------------------------------------------------
    @contextmanager
    def record(self) -> Generator[Program]:
        """See Backend.record. A recording that raises is dropped."""
        if self._recording is not None:
            raise DeviceError("a program is being recorded already")
        if self.closed:
            raise DeviceError("the backend is closed")
        program = self._recording = CpuProgram(self.native.Tape(), self.submit)
        try:
            yield program
            for key, (buffer, _) in program.fetched.items():
                copy = self.empty(buffer.shape, buffer.dtype)
                program.fetched[key] = buffer, copy
                self.call("copy", buffer, copy, buffer.nbytes)
        finally:
            self._recording = None
        program.sealed = True

    @contextmanager
    def profile(self) -> Generator[Profile]:
        """See Backend.profile: seconds of each op, without counts and rates."""
        self._profile = taken = Profile()
        try:
            yield taken
        finally:
            self._profile = None

    def submit(self, programs: Sequence[Program]) -> None:
        """See Backend.submit. Python waits; its other threads do not."""
        if self.closed:
            raise DeviceError("the backend is closed")
        own = [program for program in programs if isinstance(program, CpuProgram)]
        if len(own) != len(programs):
            raise DeviceError("a program of another backend was given to the CPU backend")
        if not all(program.sealed for program in own):
            raise DeviceError("a program can run once its recording has ended")
        tapes = [program.tape for program in own]
        if self._profile is None:
            self.native.run(self._pool, tapes)
        else:
            for op, seconds in dict(self.native.profile(self._pool, tapes)).items():
                self._profile.add(op, op, seconds, calls=0)
        self.stats.submits += 1
        for program in own:
            program.runs += 1

    def synchronize(self) -> None:
        """See Backend.synchronize."""
        if self.closed:
            raise DeviceError("the backend is closed")
