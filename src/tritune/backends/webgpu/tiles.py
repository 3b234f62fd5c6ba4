"""How a matrix product is cut for a device: the tile of a workgroup, and among how many workgroups its depth is split.

See kernels/gemm.wgsl. A product of few rows and columns has fewer tiles than a large GPU has cores; splitting the depth
makes more work of the same size, at the price of writing and adding up partial sums.
"""

from __future__ import annotations

from typing import NamedTuple

NARROW = 48
"""Most rows or columns for which a tile of just that many is made; LoRA's ranks."""
PARTIAL_BYTES = 96 << 20
"""Most memory that the partial sums of one product may take."""
SLOTS = 264
"""Workgroups of LARGE that an H200 runs at a time. A smaller GPU does no worse with more of them."""
FLOPS, BYTES, DISPATCH = 37e12, 3e12, 3e-6
"""What an H200 does in a second with all slots taken, moves in a second, and the time of one dispatch more."""


class Tile(NamedTuple):
    """Part of a product that one workgroup makes, and of which each thread makes a part."""

    rows: int
    columns: int
    depth: int  # columns of the operands that are in workgroup memory at a time
    thread_rows: int
    thread_columns: int


class Plan(NamedTuple):
    """A tile, and the number of workgroups that share the depth of one."""

    tile: Tile
    splits: int


LARGE = Tile(128, 128, 16, 8, 8)
"""Of thirteen tiles the fastest on an H200, or within 3 % of it, for every product of the 2B-4T model at 512 rows."""
LARGE_BYTES = 17 << 10
"""Workgroup memory of LARGE."""


def plan_product(software: bool, storage: int, m: int, n: int, k: int) -> Plan:
    """The plan for C [m, n] = Σ over k.

    software: a software renderer, where a split only costs; storage: bytes of workgroup memory that a kernel may have.
    """
    if software:  # few shapes: each is a kernel to compile
        return Plan(Tile(16 if m <= 16 else 64, 16 if n <= 16 else 64, 16, 4, 4), 1)
    rows, columns = _narrow(m), _narrow(n)
    if rows < 64 or columns < 64:
        tile = Tile(rows, columns, 16, 4, 4)
        return Plan(tile, max(1, min(2 * SLOTS // _tiles(tile, m, n), _most_splits(tile, m, n, k))))
    large = LARGE._replace(rows=64 if m <= 64 else 128, columns=64 if n <= 64 else 128)
    tile = large if storage >= LARGE_BYTES else large._replace(depth=8)
    return Plan(tile, min(range(1, _most_splits(tile, m, n, k) + 1), key=lambda s: _seconds(tile, s, m, n, k)))


def _narrow(size: int) -> int:
    return 64 if size > NARROW else -(-size // 16) * 16


def _tiles(tile: Tile, m: int, n: int) -> int:
    return -(-m // tile.rows) * -(-n // tile.columns)


def _most_splits(tile: Tile, m: int, n: int, k: int) -> int:
    """Splits that leave each some depth, and partial sums within memory."""
    return max(1, min(k // (8 * tile.depth), PARTIAL_BYTES // (16 * m * -(-n // 4)), 64))


def _seconds(tile: Tile, splits: int, m: int, n: int, k: int) -> float:
    """Estimated time: as many rounds as the slots need, and the partial sums written and read."""
    rounds = -(-_tiles(tile, m, n) * splits // SLOTS)
    depth = -(-k // (splits * tile.depth)) * tile.depth
    product = rounds * SLOTS * 2 * tile.rows * tile.columns * depth / FLOPS
    return product + (splits > 1) * (8 * m * n * splits / BYTES + DISPATCH)
