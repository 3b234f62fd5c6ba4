"""How a matrix product is cut for a device: the tile of a workgroup, and among how many workgroups its depth is split.

See kernels/gemm.wgsl. A product of few rows and columns has fewer tiles than a large GPU has cores; splitting the depth
makes more work of the same size, at the price of writing and adding up partial sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .choices import CANDIDATES, Choice, product_class

NARROW = 48
"""Most rows or columns for which a tile of just that many is made; LoRA's ranks."""
PARTIAL_BYTES = 96 << 20
"""Most memory that the partial sums of one product may take."""
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


def plan_product(software: bool, storage: int, m: int, n: int, k: int, choices: Mapping[str, Choice]) -> Plan:
    """The plan for C [m, n] = Σ over k.

    software: a software renderer, where a split only costs; storage: bytes of workgroup memory that a kernel may have;
    choices: what was measured to be the best on the device, see choices.py.
    """
    name = product_class(m)
    if software and (name not in choices or min(m, n) <= 16):  # few shapes: each is a kernel to compile
        return Plan(Tile(16 if m <= 16 else 64, 16 if n <= 16 else 64, 16, 4, 4), 1)
    (slots,) = choices.get("splits", CANDIDATES["splits"][0])
    rows, columns = _narrow(m), _narrow(n)
    if not software and (rows < 64 or columns < 64):
        tile = Tile(rows, columns, 16, 4, 4)
        return Plan(tile, max(1, min(2 * slots // _tiles(tile, m, n), _most_splits(tile, m, n, k))))
    tile = Tile(*choices.get(name, CANDIDATES[name][0]))
    tile = tile._replace(columns=min(tile.columns, 64 if n <= 64 else 128))
    tile = tile if _storage(tile) <= storage else tile._replace(depth=8)
    splits = range(1, 1 if software else _most_splits(tile, m, n, k) + 1)
    return Plan(tile, min(splits, key=lambda s: _seconds(tile, slots, s, m, n, k), default=1))


def _narrow(size: int) -> int:
    return 64 if size > NARROW else -(-size // 16) * 16


def _tiles(tile: Tile, m: int, n: int) -> int:
    return -(-m // tile.rows) * -(-n // tile.columns)


def _most_splits(tile: Tile, m: int, n: int, k: int) -> int:
    """Splits that leave each some depth, and partial sums within memory."""
    return max(1, min(k // (8 * tile.depth), PARTIAL_BYTES // (16 * m * -(-n // 4)), 64))


def _storage(tile: Tile) -> int:
    """Bytes of workgroup memory, and a little for slots."""
    return 16 * tile.depth * ((tile.rows + tile.columns) // 4 + 2) + 512


def _seconds(tile: Tile, slots: int, splits: int, m: int, n: int, k: int) -> float:
    """Estimated time: as many rounds as the slots need, and the partial sums written and read."""
    rounds = -(-_tiles(tile, m, n) * splits // slots)
    depth = -(-k // (splits * tile.depth)) * tile.depth
    product = rounds * slots * 2 * tile.rows * tile.columns * depth / FLOPS
    return product + (splits > 1) * (8 * m * n * splits / BYTES + DISPATCH)
