"""How attention of many rows is cut: the tile of a workgroup of the kernels made of kernels/attention_tile.wgsl."""

from __future__ import annotations

from typing import NamedTuple


class AttentionTile(NamedTuple):
    """8 groups of threads, each with some queries (for dk and dv: keys) of its own, that walk the other side."""

    own: int  # vectors of a thread
    columns: int  # threads of a group
    walked: int  # vectors of a thread in each step
    pipelined: bool  # loops unrolled, and the next step's vectors on their way while this one's are worked on

    @property
    def size(self) -> int:
        """Vectors of a workgroup."""
        return 8 * self.own

    def workgroup_bytes(self, head_dim: int, operands: int) -> int:
        """Workgroup memory: walked vectors of each operand, their weights, and a number of each query and column."""
        walked, fours = self.columns * self.walked, self.size // 4
        return 16 * (operands * walked * (head_dim // 4 + 1 + fours + 1) + fours * self.columns) + 64


GPU = (AttentionTile(4, 16, 2, True), AttentionTile(4, 16, 1, True), AttentionTile(4, 8, 1, True))
"""The first is the fastest of eight on an H200, for 512 and for 2048 rows of heads of 128."""
SOFTWARE = (
    AttentionTile(4, 8, 4, False),
    AttentionTile(4, 8, 2, False),
    AttentionTile(4, 8, 1, False),
)  # barriers cost by the thread
MOST_SUMS = 16
"""vec4 that a thread may add up; beyond compilers begin to spill."""


def plan_attention(software: bool, storage: int, head_dim: int, *, operands: int = 1, sums: int = 1) -> AttentionTile:
    """The largest tile that fits.

    storage: bytes of workgroup memory; operands: walked vectors that lie in it together; sums: vectors that a thread
    adds up for each of its own.
    """
    tiles = SOFTWARE if software else GPU
    for tile in tiles:
        slots = -(-head_dim // (4 * tile.columns))
        if tile.own * slots * sums <= MOST_SUMS and tile.workgroup_bytes(head_dim, operands) <= storage:
            return tile
    return tiles[-1]
