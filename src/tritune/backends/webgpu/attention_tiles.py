"""How attention of many rows is cut: the tile of a workgroup of the kernels made of kernels/attention_tile.wgsl."""

from __future__ import annotations

from typing import NamedTuple


class AttentionTile(NamedTuple):
    """8 groups of threads, each with some queries (for dk and dv: keys) of its own, that walk the other side."""

    own: int  # vectors of a thread
    columns: int  # threads of a group
    walked: int  # vectors of a thread in each step

    @property
    def size(self) -> int:
        """Vectors of a workgroup."""
        return 8 * self.own

    def workgroup_bytes(self, head_dim: int, operands: int) -> int:
        """Workgroup memory: walked vectors of each operand, their weights, and a number of each query and column."""
        walked, fours = self.columns * self.walked, self.size // 4
        return 16 * (operands * walked * (head_dim // 4 + 1 + fours + 1) + fours * self.columns) + 64


LARGE = AttentionTile(8, 16, 2)
GPU = (AttentionTile(4, 16, 2), AttentionTile(4, 16, 1), AttentionTile(4, 8, 1))
SOFTWARE = (AttentionTile(4, 8, 4), AttentionTile(4, 8, 2), AttentionTile(4, 8, 1))  # barriers cost by the thread
MANY_QUERIES = 30_000
"""Rows times heads from which on a workgroup takes 64 of them and not 32."""
MOST_SUMS = 16
"""vec4 that a thread may add up; beyond compilers begin to spill."""


def plan_attention(
    software: bool, storage: int, queries: int, head_dim: int, *, operands: int = 1, sums: int = 1
) -> AttentionTile:
    """The largest tile that fits.

    storage: bytes of workgroup memory; queries: rows times heads; operands: walked vectors that lie in workgroup memory
    together; sums: vectors that a thread adds up for each of its own.
    """
    tiles = SOFTWARE if software else (LARGE, *GPU) if queries >= MANY_QUERIES else GPU
    for tile in tiles:
        slots = -(-head_dim // (4 * tile.columns))
        if tile.own * slots * sums <= MOST_SUMS and tile.workgroup_bytes(head_dim, operands) <= storage:
            return tile
    return tiles[-1]
