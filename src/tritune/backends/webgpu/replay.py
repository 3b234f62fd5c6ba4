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
    """Dispatches as raw ids: (pipeline, 0 if it is the one before's; bind group; grid)."""

    ids: Sequence[tuple[Any, Any, int, int, int]]
    words: NDArray[np.uint64]  # [n, 5], the same as addresses


def raw_items(dispatches: Sequence[Dispatch]) -> Items:
    """What recording needs of dispatches; the objects themselves must stay alive."""
    ids: list[tuple[Any, Any, int, int, int]] = []
    current: Any = None
    for d in dispatches:
        ids.append((None if d.pipeline is current else d.pipeline._internal, d.group._internal, *d.grid))
        current = d.pipeline
    words = [(0 if p is None else _address(p), _address(group), *grid) for p, group, *grid in ids]
    return Items(ids, np.array(words, np.uint64).reshape(-1, 5))


def replayer() -> Callable[[Any, Items], None]:
    """The function that records items into a pass (of wgpu's C library): 0.4 µs each natively, 1.5 µs from Python.

    What goes wrong arrives in the error slot that the caller's ``Device.errors`` opened.
    """
    from wgpu.backends.wgpu_native._ffi import ffi, lib

    raw: Any = lib
    cffi: Any = ffi
    set_pipeline = raw.wgpuComputePassEncoderSetPipeline
    set_group = raw.wgpuComputePassEncoderSetBindGroup
    dispatch = raw.wgpuComputePassEncoderDispatchWorkgroups
    null: Any = cffi.NULL

    def from_python(target: Any, items: Items) -> None:
        for pipeline, group, x, y, z in items.ids:
            if pipeline is not None:
                set_pipeline(target, pipeline)
            set_group(target, 0, group, 0, null)
            dispatch(target, x, y, z)

    try:
        native: Any = import_module("tritune.backends.cpu._native").replay
    except (ImportError, AttributeError):  # not built, or built for an older version
        return from_python
    functions = [_address(function) for function in (set_pipeline, set_group, dispatch)]

    def natively(target: Any, items: Items) -> None:
        native(_address(target), *functions, items.words.ctypes.data, len(items.words))

    return natively


def _address(pointer: Any) -> int:
    from wgpu.backends.wgpu_native._ffi import ffi

    cffi: Any = ffi
    return int(cffi.cast("uintptr_t", pointer))
