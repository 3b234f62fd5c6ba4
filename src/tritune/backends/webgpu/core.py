"""What every op of the WebGPU backend stands on: memory, programs and ``dispatch``. The ops are mixins over it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TypeVar
from weakref import WeakSet

from tritune.backends.base import Array, Backend, Buffer, DType, Program, Stats
from tritune.backends.profile import Profile
from tritune.errors import DeviceError

from .buffers import own_buffer
from .device import AdapterInfo, Device, WebGPUOptions
from .memory import Memory
from .prepare import Preparer
from .profile import Profiler
from .program import WebGPUProgram
from .runner import Runner
from .work import RecordedOp

# Rows of a prompt at once, by kind of adapter: a large GPU is not full with the products of 512.
_PREFILL_ROWS = {"discrete": 2048, "integrated": 512}
_NO_VARIANT: Mapping[str, object] = MappingProxyType({})


class Held(ABC):
    """An op whose recording waits for the next op's."""

    counts_itself = False
    """Whether who takes it makes it be recorded on its own, so that its work is not theirs."""

    @abstractmethod
    def run(self) -> None:
        """Dispatch it."""


HeldOp = TypeVar("HeldOp", bound=Held)


class WebGPUCore(Backend):
    """Memory and programs of a WebGPU device; still without ops."""

    def __init__(self, info: AdapterInfo, options: WebGPUOptions | None = None) -> None:
        """Open ``info``'s device. Raises DeviceError when the driver refuses."""
        self.closed = True  # until it is open, so that a failure here leaves nothing to close
        self.name = "webgpu"
        self.asynchronous = True
        # A software renderer gains nothing by f16; a pool's ranges of f16 begin at multiples of 128 bytes.
        self.f16_adapters = not info.software and info.limits["min-storage-buffer-offset-alignment"] <= 128
        self.description = info.description
        self.prefill_rows = _PREFILL_ROWS.get(info.kind, self.prefill_rows)
        self.stats = Stats()
        self.device = Device(info, options or WebGPUOptions())
        self.memory = Memory(self.device, self.stats)
        self._preparer = Preparer(self.device, self.memory, self.stats)
        self._runner = Runner(self.device, self.memory, self.stats)
        self.recording: WebGPUProgram | None = None
        self._held: Held | None = None
        self._held_op: RecordedOp | None = None  # where the program counts it
        self._scratch: dict[str, Buffer] = {}
        self._programs: WeakSet[WebGPUProgram] = WeakSet()
        self.closed = False

    def dispatch(
        self,
        kernel: str,
        *,
        params: Sequence[int | float],
        buffers: Sequence[Buffer],
        grid: tuple[int, int, int],
        variant: Mapping[str, object] = _NO_VARIANT,
    ) -> None:
        """Run kernels/<kernel>.wgsl, or record it inside of ``record``.

        params: the fields of the kernel's ``Params`` in order, int as u32 (negative as i32), float as f32.
        buffers: bound in order at bindings 1, 2, …, no two overlapping; all devices take 8; leave optional ones out and
            say so in ``variant``, which are the template's variables.
        grid: workgroups; a side beyond the device's limit is folded into the next one (see prelude.wgsl), so the
            kernel rebuilds its index with ``workgroup_1d`` or ``workgroup_y`` and guards the end. With a zero side
            nothing runs.
        Raises DeviceError with the kernel's name when it does not compile or the buffers do not fit it.
        """
        if self.closed:
            raise DeviceError("the backend is closed")
        self._record_held()
        if 0 in grid:
            return
        prepared = self._preparer.prepare(kernel, dict(variant), params, buffers, grid)
        if self.recording is not None:
            self.recording.add(prepared)
        else:
            self._runner.run_now(prepared)

    def hold(self, op: Held) -> None:
        """Run an op; while recording, once the next one is recorded, which may ``take`` it and do its work too."""
        if self.recording is None:
            op.run()
            return
        self._record_held()
        self._held, self._held_op = op, self.recording.op

    def take(self, kind: type[HeldOp], wanted: Callable[[HeldOp], bool]) -> HeldOp | None:
        """The op that was recorded last, if it is held and wanted; it is then the caller's to run."""
        held = self._held
        if isinstance(held, kind) and wanted(held):
            self._held = None
            if self.recording is not None and not held.counts_itself:
                self.recording.counted_with(self._held_op)
            return held
        return None

    def _record_held(self) -> None:
        held, self._held = self._held, None
        if held is not None and self.recording is not None:
            with self.recording.counted_as(self._held_op):
                held.run()

    # -- memory ---------------------------------------------------------------------------------------------------
    @property
    def room(self) -> int | None:
        """See Backend.room: what is left of the option ``memory_limit_bytes``."""
        limit = self.device.options.memory_limit_bytes
        return None if limit is None else limit - self.stats.bytes_allocated

    def empty(self, shape: tuple[int, ...], dtype: DType = "f32") -> Buffer:
        """See Backend.empty."""
        return self.memory.empty(shape, dtype)

    def empty_together(self, *wanted: tuple[tuple[int, ...], DType]) -> list[Buffer]:
        """See Backend.empty_together."""
        return list(self.memory.empty_together(wanted))

    def reserve(self, nbytes: int) -> None:
        """See Backend.reserve."""
        self.memory.reserve(nbytes)

    def scratch(self, name: str, size: int) -> Buffer:
        """f32 [size] of memory that an op needs only while it runs; the same for all calls of a name."""
        buffer = self._scratch.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._scratch[name] = self.memory.empty((size,), "f32")
        return buffer.view(0, (size,))

    def write(self, buffer: Buffer, array: Array) -> None:
        """See Backend.write. It happens now, also while a program is being recorded."""
        self.memory.write(own_buffer(buffer), array)

    def read(self, buffer: Buffer) -> Array:
        """See Backend.read."""
        return self.memory.read(own_buffer(buffer))

    def close(self) -> None:
        """See Backend.close. Closing twice is harmless."""
        if self.closed:
            return
        self.closed = True
        for program in list(self._programs):
            program.close()
        self._preparer.close()
        self.memory.close()
        self.device.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            warnings.warn(f"{self.description}: the backend was not closed", ResourceWarning, stacklevel=2)
            self.close()

    # -- programs -------------------------------------------------------------------------------------------------
    @contextmanager
    def record(self) -> Generator[Program]:
        """See Backend.record. A recording that raises is dropped."""
        if self.recording is not None:
            raise DeviceError("a program is being recorded already")
        program = WebGPUProgram(self._runner)
        self.recording = program
        try:
            yield program
            self._record_held()
        finally:
            self.recording = self._held = None
        program.seal()
        self._programs.add(program)

    def submit(self, programs: Sequence[Program]) -> None:
        """See Backend.submit."""
        own = [program for program in programs if isinstance(program, WebGPUProgram)]
        if len(own) != len(programs):
            raise DeviceError("a program of another backend was given to WebGPU")
        self._runner.submit(own)

    @contextmanager
    def profile(self) -> Generator[Profile]:
        """See Backend.profile. Raises DeviceError where the device has no timestamps, or within another profile."""
        if self._runner.profiler is not None:
            raise DeviceError("a profile is being taken already")
        profiler = Profiler(self.device, self.memory)
        self._runner.profiler = profiler
        try:
            yield profiler.profile
        finally:
            self._runner.profiler = None
            profiler.close()

    def synchronize(self) -> None:
        """See Backend.synchronize."""
        if self.closed:
            raise DeviceError("the backend is closed")
        self.device.wait()
