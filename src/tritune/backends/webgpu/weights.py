"""Frozen matrices on the device: ternary weights and 16-bit tables, and how their host arrays become device words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import DType, Table, TernaryWeight
from tritune.errors import DeviceError
from tritune.formats.file_bytes import RowSource, row_blocks

from .buffers import WebGPUBuffer, item_bytes
from .memory import Memory

CODES_A_WORD = 16
MAX_PARTS = 4
"""Parts of a matrix that the kernels know."""
_NO_PART = 0xFFFFFFFF
_PACKED_AT_ONCE = 1 << 18  # codes; they stay in a core's cache
# Sums of products of an int8 and a ternary number stay exact in f32 up to 2^24.
MAX_IN_FEATURES = (1 << 24) // 128


class WebGPUTernary(TernaryWeight):
    """A ternary matrix as 2-bit codes w + 1, and the scale of each row.

    words u32 [N, ceil(K / 16)]: the code of column k lies in word k // 16 at bit 8 * (k % 4) + 2 * (k // 4 % 4), so
    that ``(word >> 2 * j) & 0x03030303`` holds columns 4j … 4j + 3 as four bytes. Columns beyond K hold zero's code.
    """

    def __init__(
        self,
        words: WebGPUBuffer,
        row_scales: WebGPUBuffer,
        parts: tuple[int, ...],
        part_scales: tuple[float, ...],
        in_features: int,
    ) -> None:
        self.words = words  # u32 [N, ceil(K / 16)]
        self.row_scales = row_scales  # f32 [N], best in the same block: see held_linear.py
        self.part_scales = part_scales
        self.parts = parts
        self.out_features = sum(parts)
        self.in_features = in_features
        self.nbytes = words.nbytes + row_scales.nbytes


@dataclass(frozen=True)
class TableShard:
    """Rows ``first_row`` … ``first_row + rows - 1`` of a table."""

    first_row: int
    rows: int
    buffer: WebGPUBuffer  # [rows, D] in the table's dtype


class WebGPUTable(Table):
    """A [V, D] table in shards that each fit into one binding."""

    def __init__(self, shards: tuple[TableShard, ...], columns: int, dtype: DType) -> None:
        self.shards = shards
        self.rows = sum(shard.rows for shard in shards)
        self.columns = columns
        self.dtype: DType = dtype
        self.nbytes = sum(shard.buffer.nbytes for shard in shards)


def pack_codes(codes: NDArray[np.int8]) -> NDArray[np.uint32]:
    """Ternary numbers int8 [N, K] as words u32 [N, ceil(K / 16)]: see WebGPUTernary."""
    rows, columns = codes.shape
    words = -(-columns // CODES_A_WORD)
    packed = np.empty((rows, words), np.uint32)
    step = max(1, _PACKED_AT_ONCE // max(1, words * CODES_A_WORD))
    padded = np.ones((min(step, rows), words * CODES_A_WORD), dtype=np.uint8)
    for start in range(0, rows, step):
        part = codes[start : start + step]
        wide = padded[: len(part)]
        np.add(part.view(np.uint8), 1, out=wide[:, :columns])  # -1 is 255, and wraps to 0
        fours = wide.view("<u4").reshape(len(part), words, 4)  # [.., j]: columns 4j … 4j + 3 as bytes
        out = packed[start : start + step]
        out[...] = fours[:, :, 3]
        for j in (2, 1, 0):
            out <<= 2
            out |= fours[:, :, j]
    return packed


def upload_ternary(memory: Memory, parts: Sequence[tuple[NDArray[np.int8], float]], max_binding: int) -> WebGPUTernary:
    """See Backend.pack_ternary. Raises DeviceError for shapes or values that are not a ternary matrix."""
    if not parts:
        raise DeviceError("pack_ternary: no parts were given")
    columns = parts[0][0].shape[-1]
    for codes, _ in parts:
        if codes.dtype != np.int8 or codes.ndim != 2 or codes.shape[1] != columns:
            raise DeviceError(f"pack_ternary: expected int8 [n, {columns}], found {codes.dtype} {codes.shape}")
        if codes.size and (int(codes.min()) < -1 or int(codes.max()) > 1):
            raise DeviceError(f"pack_ternary: values from {codes.min()} to {codes.max()}, expected -1, 0 and 1")
    if columns % 4 or not 0 < columns <= MAX_IN_FEATURES:
        raise DeviceError(f"pack_ternary: {columns} columns, expected a multiple of 4 up to {MAX_IN_FEATURES}")
    packed = np.concatenate([pack_codes(codes) for codes, _ in parts])
    if packed.nbytes > max_binding:
        raise DeviceError(f"pack_ternary: {packed.nbytes} bytes exceed the device's binding limit of {max_binding}")
    sizes = tuple(codes.shape[0] for codes, _ in parts)
    row_scales = np.repeat(np.array([scale for _, scale in parts], dtype=np.float32), sizes)
    words_buffer, scales_buffer = memory.empty_together([(packed.shape, "u32"), (row_scales.shape, "f32")])
    memory.write(words_buffer, packed)
    memory.write(scales_buffer, row_scales)
    return WebGPUTernary(words_buffer, scales_buffer, sizes, tuple(scale for _, scale in parts), columns)


def upload_table(memory: Memory, source: RowSource, dtype: DType, max_binding: int) -> WebGPUTable:
    """See Backend.table. Raises DeviceError for another dtype or shape, or when one row exceeds the binding limit."""
    if dtype not in ("f32", "f16", "bf16"):
        raise DeviceError(f"a table is f32, f16 or bf16, found {dtype}")
    if len(source.shape) != 2 or source.shape[1] % 4:
        raise DeviceError(f"a table is [rows, columns] with columns a multiple of 4, found {source.shape}")
    rows, columns = source.shape
    most = max_binding // (columns * item_bytes(dtype))
    if most < 1:
        raise DeviceError(f"a row of a table ({columns} {dtype}) exceeds the binding limit, {max_binding} bytes")
    shards: list[TableShard] = []
    for first in range(0, rows, most):
        count = min(most, rows - first)
        buffer = memory.empty((count, columns), dtype)
        for part in row_blocks(count, columns * item_bytes(dtype)):
            values = source[first + part.start : first + part.stop]
            memory.write(buffer.view(part.start * columns, values.shape), values)
        shards.append(TableShard(first, count, buffer))
    return WebGPUTable(tuple(shards), columns, dtype)


def part_ends(parts: tuple[int, ...]) -> list[int]:
    """The first output of parts 1, 2 and 3."""
    ends: list[int] = []
    first = 0
    for size in parts[:-1]:
        first += size
        ends.append(first)
    return ends + [_NO_PART] * (MAX_PARTS - 1 - len(ends))


def part_params(w: WebGPUTernary) -> list[int | float]:
    """What the kernels want to know of a matrix's parts: where they end, their scales, how many there are."""
    return [*part_ends(w.parts), *w.part_scales, *[0.0] * (MAX_PARTS - len(w.parts)), len(w.parts)]
