"""Where the time goes: each dispatch in a pass of its own between two timestamps, summed up by op and kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tritune.backends.profile import Profile
from tritune.errors import DeviceError

from .device import Device
from .memory import Memory
from .prepare import Dispatch
from .program import WebGPUProgram
from .work import RecordedOp

_QUERIES = 4096  # the most that WebGPU promises in a set


class Profiler:
    """Runs programs and adds what they took to ``profile``."""

    def __init__(self, device: Device, memory: Memory) -> None:
        """Raises DeviceError where the device has no timestamps."""
        if "timestamp-query" not in device.info.features:
            raise DeviceError(f"{device.info.name}: no profile, the device has no timestamp queries")
        from wgpu.backends.wgpu_native._ffi import lib

        self._device, self._memory = device, memory
        self.profile = Profile()
        raw: Any = lib
        self._tick = float(raw.wgpuQueueGetTimestampPeriod(device.queue._internal)) * 1e-9  # seconds
        with device.errors("making timestamp queries"):
            self._queries: Any = device.handle.create_query_set(type="timestamp", count=_QUERIES)
        self._resolved = memory.create_buffer(8 * _QUERIES, "QUERY_RESOLVE|COPY_SRC")
        self._staging = memory.create_buffer(8 * _QUERIES, "COPY_DST|MAP_READ")

    def run(self, program: WebGPUProgram) -> None:
        """Run a program's dispatches, a submit for every 2048 of them, and wait."""
        names = {number: op.name for op in program.ops for number in op.numbers}
        for start in range(0, len(program.dispatches), _QUERIES // 2):
            part = program.dispatches[start : start + _QUERIES // 2]
            times = self._timed([[dispatch] for dispatch in part])
            for number, (dispatch, seconds) in enumerate(zip(part, times, strict=True), start):
                self.profile.add(names.get(number, dispatch.kernel), dispatch.kernel, seconds)
        for op in program.ops:
            self._count(op, program.dispatches_of(op))

    def seconds_of(self, program: WebGPUProgram) -> float:
        """Run a program's dispatches one after the other, as they run without a profile, and say how long it took."""
        return self._timed([program.dispatches])[0]

    def _timed(self, passes: Sequence[Sequence[Dispatch]]) -> list[float]:
        """Seconds of each pass, of the dispatches given."""
        used = 2 * len(passes)
        with self._device.errors("profiling"):
            encoder = self._device.handle.create_command_encoder()
            for i, dispatches in enumerate(passes):
                stamps = {
                    "query_set": self._queries,
                    "beginning_of_pass_write_index": 2 * i,
                    "end_of_pass_write_index": 2 * i + 1,
                }
                compute = encoder.begin_compute_pass(timestamp_writes=stamps)
                for dispatch in dispatches:
                    compute.set_pipeline(dispatch.pipeline)
                    compute.set_bind_group(0, dispatch.group, dispatch.offsets)
                    compute.dispatch_workgroups(*dispatch.grid)
                compute.end()
            encoder.resolve_query_set(self._queries, 0, used, self._resolved, 0)
            encoder.copy_buffer_to_buffer(self._resolved, 0, self._staging, 0, 8 * used)
            self._device.queue.submit([encoder.finish()])
        ticks = self._memory.map_and_copy(self._staging, 8 * used).view(np.uint64).reshape(-1, 2).astype(np.int64)
        return ((ticks[:, 1] - ticks[:, 0]) * self._tick).tolist()

    def _count(self, op: RecordedOp, dispatches: Sequence[Dispatch]) -> None:
        if not dispatches:
            return
        time = self.profile.ops[op.name]
        time.calls += 1
        time.flops += op.work.flops
        time.nbytes += bytes_of(op, dispatches)
        time.exact = time.exact and op.work.exact

    def close(self) -> None:
        """Give the queries and buffers back."""
        if not self._memory.closed:
            self._queries.destroy()
            for buffer in (self._resolved, self._staging):
                self._memory.destroy_buffer(buffer, 8 * _QUERIES)


def bytes_of(op: RecordedOp, dispatches: Sequence[Dispatch]) -> float:
    """Bytes that an op moves: as it tells, else all of its buffers once."""
    if op.work.nbytes is not None:
        return op.work.nbytes
    buffers = {(b.arena.serial, b.offset): b.nbytes for dispatch in dispatches for b in dispatch.buffers}
    return float(sum(buffers.values()))
