"""Dispatches and copies into a command encoder: by native code where it was built, else by the same calls in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .prepare import Dispatch


@dataclass(frozen=True)
class Items:
    """Dispatches, which share a pass with those before them, as raw ids.

    ids: (pipeline, None or 0 if it is the one before's; bind group; number of offsets in it, and their place; grid).
    """

    ids: Sequence[tuple[Any, Any, int, Any, int, int, int]]
    arrays: tuple[NDArray[np.uint64], NDArray[np.uint32]]  # [n, 6], the same as addresses and numbers; all offsets
    step: tuple[int, int, int]  # for native code: the arrays' addresses, and between them the number of dispatches


@dataclass(frozen=True)
class Copies:
    """Copies between buffers, as raw ids: (source, start, target, offset, size)."""

    ids: Sequence[tuple[Any, int, Any, int, int]]
    array: NDArray[np.uint64]  # [n, 5], the same as addresses and numbers
    step: tuple[int, int, int]  # for native code: the array's address, the number of copies, 0


class Copy(NamedTuple):
    """Bytes of an arena, and where they go in staging."""

    source: Any
    start: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """Where they end in the arena."""
        return self.start + self.size


def raw_items(dispatches: Sequence[Dispatch]) -> Items:
    """What recording needs of dispatches; the objects themselves must stay alive."""
    from wgpu.backends.wgpu_native._ffi import ffi

    cffi: Any = ffi
    offsets = np.array([offset for d in dispatches for offset in d.offsets], np.uint32)
    ids: list[tuple[Any, Any, int, Any, int, int, int]] = []
    current, at = None, offsets.ctypes.data
    for d in dispatches:
        pipeline = None if d.pipeline is current else d.pipeline._internal
        ids.append((pipeline, d.group._internal, len(d.offsets), cffi.cast("uint32_t *", at), *d.grid))
        current, at = d.pipeline, at + offsets.itemsize * len(d.offsets)
    rows = [(0 if p is None else _address(p), _address(group), n, *grid) for p, group, n, _, *grid in ids]
    words = np.array(rows, np.uint64).reshape(-1, 6)
    return Items(ids, (words, offsets), (words.ctypes.data, len(words), offsets.ctypes.data))


def raw_copies(copies: Sequence[Copy], target: Any) -> Copies:
    """What recording needs of copies into the buffer ``target``; the objects themselves must stay alive."""
    ids = [(source._internal, start, target._internal, offset, size) for source, start, offset, size in copies]
    rows = [(_address(source), start, _address(to), offset, size) for source, start, to, offset, size in ids]
    words = np.array(rows, np.uint64).reshape(-1, 5)
    return Copies(ids, words, (words.ctypes.data, len(words), 0))


def encoding(device: Any) -> Callable[[Sequence[Items | Copies]], Any]:
    """The function that makes a command encoder (of wgpu's C library) with the steps given in it.

    A dispatch takes it 0.4 µs natively, 1.5 µs from Python. What goes wrong arrives in the error slot that the caller's
    ``Device.errors`` opened.
    """
    from wgpu.backends.wgpu_native._ffi import ffi, lib

    raw: Any = lib
    cffi: Any = ffi
    null: Any = cffi.NULL
    functions = (
        raw.wgpuDeviceCreateCommandEncoder,
        raw.wgpuCommandEncoderBeginComputePass,
        raw.wgpuComputePassEncoderSetPipeline,
        raw.wgpuComputePassEncoderSetBindGroup,
        raw.wgpuComputePassEncoderDispatchWorkgroups,
        raw.wgpuComputePassEncoderEnd,
        raw.wgpuComputePassEncoderRelease,
        raw.wgpuCommandEncoderCopyBufferToBuffer,
    )
    create_encoder, begin_pass, set_pipeline, set_group, dispatch, end_pass, release_pass, copy = functions

    def from_python(steps: Sequence[Items | Copies]) -> Any:
        encoder, target = create_encoder(device, null), None
        for step in steps:
            if isinstance(step, Copies):
                target = ended(target)
                for ids in step.ids:
                    copy(encoder, *ids)
                continue
            target = target or begin_pass(encoder, null)
            for pipeline, group, count, offsets, x, y, z in step.ids:
                if pipeline is not None:
                    set_pipeline(target, pipeline)
                set_group(target, 0, group, count, offsets)
                dispatch(target, x, y, z)
        ended(target)
        return encoder

    def ended(target: Any) -> None:
        if target is not None:
            end_pass(target)
            release_pass(target)

    try:
        native: Any = import_module("tritune.backends.cpu._native").encode_commands
    except (ImportError, AttributeError):  # not built, or built for an older version
        return from_python
    addresses = np.array([_address(function) for function in functions], np.uint64)
    table, device_at = (
        (addresses.ctypes.data, addresses),
        _address(device),
    )  # the array must live as long as its address
    cast, encoder_type = cffi.cast, cffi.typeof("WGPUCommandEncoder")

    def natively(steps: Sequence[Items | Copies]) -> Any:
        return cast(encoder_type, native(device_at, table[0], [step.step for step in steps]))

    return natively


def _address(pointer: Any) -> int:
    from wgpu.backends.wgpu_native._ffi import ffi

    cffi: Any = ffi
    return int(cffi.cast("uintptr_t", pointer))
