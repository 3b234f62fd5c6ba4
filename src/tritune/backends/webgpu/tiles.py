"""How a matrix product is cut for a device: the tile of a workgroup, and among how many workgroups its depth is split.

See kernels/gemm.wgsl. A product of few rows and columns has fewer tiles than a large GPU has cores; splitting the depth
makes more work of the same size, at the price of writing and adding up partial sums.
"""

from __future__ import annotations

from typing import NamedTuple

NARROW = 48
"""Most rows or columns for which a tile of just that many is made; LoRA's ranks."""
PARTIAL_BYTES = 32 << 20
"""Most memory that the partial sums of one product may take."""


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
        return _filled(Tile(rows, columns, 16, 4, 4), m, n, k, 528)
    large = LARGE._replace(rows=64 if m <= 64 else 128, columns=64 if n <= 64 else 128)
    return _filled(large if storage >= LARGE_BYTES else large._replace(depth=8), m, n, k, 264)


def _narrow(size: int) -> int:
    return 64 if size > NARROW else -(-size // 16) * 16


def _filled(tile: Tile, m: int, n: int, k: int, wanted: int) -> Plan:
    """As many splits as bring ``wanted`` workgroups, if each still has some depth and memory allows."""
    tiles = -(-m // tile.rows) * -(-n // tile.columns)
    most = min(k // (8 * tile.depth), PARTIAL_BYTES // (16 * m * -(-n // 4)))
    return Plan(tile, max(1, min(wanted // tiles, most)))
