"""Dispatches into a compute pass: by native code where it was built, else by the same calls from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .prepare import Dispatch


@dataclass(frozen=True)
class Items:
    """Dispatches as raw ids: (pipeline, None or 0 if it is the one before's; bind group; offsets in it; grid)."""

    ids: Sequence[tuple[Any, Any, int, Any, int, int, int]]  # the offsets as their number and a pointer
    words: NDArray[np.uint64]  # [n, 6], the same as addresses and numbers
    offsets: NDArray[np.uint32]  # of all dispatches, one behind the other
    addresses: tuple[int, int, int]  # of the words, their rows, of the offsets


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
    return Items(ids, words, offsets, (words.ctypes.data, len(words), offsets.ctypes.data))


def replayer() -> Callable[[Any, Items], None]:
    """The function that records items into a pass (of wgpu's C library): 0.4 µs each natively, 1.5 µs from Python.

    What goes wrong arrives in the error slot that the caller's ``Device.errors`` opened.
    """
    from wgpu.backends.wgpu_native._ffi import ffi, lib

    cffi: Any = ffi
    raw: Any = lib
    cast, pointer_type = cffi.cast, cffi.typeof("uintptr_t")
    set_pipeline = raw.wgpuComputePassEncoderSetPipeline
    set_group = raw.wgpuComputePassEncoderSetBindGroup
    dispatch = raw.wgpuComputePassEncoderDispatchWorkgroups

    def from_python(target: Any, items: Items) -> None:
        for pipeline, group, count, offsets, x, y, z in items.ids:
            if pipeline is not None:
                set_pipeline(target, pipeline)
            set_group(target, 0, group, count, offsets)
            dispatch(target, x, y, z)

    try:
        native: Any = import_module("tritune.backends.cpu._native").replay_dispatches
    except (ImportError, AttributeError):  # not built, or built for an older version
        return from_python
    functions = [_address(function) for function in (set_pipeline, set_group, dispatch)]

    def natively(target: Any, items: Items) -> None:
        native(int(cast(pointer_type, target)), *functions, *items.addresses)

    return natively


def _address(pointer: Any) -> int:
    from wgpu.backends.wgpu_native._ffi import ffi

    cffi: Any = ffi
    return int(cffi.cast("uintptr_t", pointer))
