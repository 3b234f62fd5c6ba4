"""Ternary matrices of the CPU backend: 2 bits a weight, in the lines of native/ternary.h."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import TernaryWeight
from tritune.errors import DeviceError

from .buffers import CpuBuffer, own_buffer
from .core import CpuCore

LINE_ROWS = 16
"""Rows of a matrix that are packed together; its row scales are padded to a multiple of them."""
# Sums of products of an int8 and a ternary number stay exact in f32 up to 2^24.
MAX_IN_FEATURES = (1 << 24) // 128

Parts = Sequence[tuple[NDArray[np.int8], float]]


class CpuTernary(TernaryWeight):
    """A packed matrix [N, K] of parts, stacked by rows."""

    def __init__(
        self, lines: CpuBuffer, row_scale: CpuBuffer, starts: CpuBuffer, parts: tuple[int, ...], in_features: int
    ) -> None:
        self.lines = lines  # i8 [bytes]
        self.row_scale = row_scale  # f32 [N, rounded up to LINE_ROWS]
        self.starts = starts  # i32 [P + 1]: first row of each part, and N
        self.parts = parts
        self.out_features = sum(parts)
        self.in_features = in_features
        self.nbytes = lines.nbytes + row_scale.nbytes + starts.nbytes


def pack(core: CpuCore, pool: object, parts: Parts) -> CpuTernary:
    """See Backend.pack_ternary. Raises DeviceError for shapes or values that are not a ternary matrix."""
    columns = check_parts(parts)
    sizes = tuple(int(codes.shape[0]) for codes, _ in parts)
    rows = sum(sizes)
    lines = core.empty((core.native.ternary_bytes(rows, columns),), "i8")
    row_scale = core.empty((-(-rows // LINE_ROWS) * LINE_ROWS,))
    starts = own_buffer(core.upload(np.cumsum((0, *sizes)), "i32"))
    first = 0
    for codes, scale in parts:
        packed = np.ascontiguousarray(codes)
        core.native.pack_ternary(pool, packed.ctypes.data, packed.shape[0], columns, first, lines.address)
        row_scale.array[first : first + packed.shape[0]] = scale
        first += packed.shape[0]
    return CpuTernary(lines, row_scale, starts, sizes, columns)


def unpack(core: CpuCore, pool: object, weight: CpuTernary) -> NDArray[np.int8]:
    """The codes [N, K] in {-1, 0, 1} that ``weight`` was packed from."""
    codes = np.empty((weight.out_features, weight.in_features), np.int8)
    core.native.unpack_ternary(
        pool, weight.lines.address, weight.out_features, weight.in_features, 0, codes.ctypes.data
    )
    return codes


def check_parts(parts: Parts) -> int:
    """The columns K of the parts of a matrix. Raises DeviceError for parts that are not ternary or do not fit."""
    if not parts:
        raise DeviceError("pack_ternary: no parts were given")
    columns = int(parts[0][0].shape[-1])
    for codes, _ in parts:
        if codes.dtype != np.int8 or codes.ndim != 2 or codes.shape[1] != columns:
            raise DeviceError(f"pack_ternary: expected int8 [n, {columns}], found {codes.dtype} {codes.shape}")
        if codes.size and (int(codes.min()) < -1 or int(codes.max()) > 1):
            raise DeviceError(f"pack_ternary: values from {codes.min()} to {codes.max()}, expected -1, 0 and 1")
    if columns % 4 or not 0 < columns <= MAX_IN_FEATURES:
        raise DeviceError(f"pack_ternary: {columns} columns, expected a multiple of 4 up to {MAX_IN_FEATURES}")
    return columns


def own_weight(weight: TernaryWeight) -> CpuTernary:
    """``weight`` as one of this backend. Raises DeviceError for another's."""
    if not isinstance(weight, CpuTernary):
        raise DeviceError(f"a weight of another backend ({type(weight).__name__}) was given to the CPU backend")
    return weight
