"""A batch of rows on its way to the device: host arrays, and the buffers that they are written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tritune.backends.base import Backend, DType, Rows


@dataclass(frozen=True)
class Piece:
    """The next rows of one sequence."""

    tokens: Sequence[int]
    start: int = 0  # position of the first one
    slot: int = 0  # adapter of all of them: 0 = none
    multiplier: float = 1.0
    blocks: Sequence[int] = ()  # of the sequence's cache, in order of position


class RowBuffers:
    """The buffers of Rows for at most ``max_rows`` rows of ``max_sequences`` sequences."""

    def __init__(self, backend: Backend, max_rows: int, max_sequences: int, max_blocks: int = 0) -> None:
        self.backend = backend
        self.max_rows = max_rows
        self.max_sequences = max_sequences
        self.max_blocks = max_blocks
        integers: tuple[tuple[int, ...], DType] = (max_rows,), "i32"
        q_start: tuple[tuple[int, ...], DType] = (max_sequences + 1,), "i32"
        made = backend.empty_together(integers, integers, integers, q_start, integers, ((max_rows,), "f32"))
        self.rows = Rows(*made, block_tables=backend.empty((max_sequences, max_blocks), "i32") if max_blocks else None)

    def bucket(self, count: int) -> Rows:
        """The first ``count`` rows."""
        rows = self.rows
        return Rows(
            tokens=rows.tokens.view(0, (count,)),
            positions=rows.positions.view(0, (count,)),
            sequence=rows.sequence.view(0, (count,)),
            q_start=rows.q_start,
            slot=rows.slot.view(0, (count,)),
            multiplier=rows.multiplier.view(0, (count,)),
            block_tables=rows.block_tables,
        )

    def write(self, pieces: Sequence[Piece], count: int) -> None:
        """Describe the pieces in the first ``count`` rows; rows left over are marked spare."""
        tokens, positions, sequence, slot = (np.zeros(count, np.int32) for _ in range(4))
        positions[:] = -1
        multiplier = np.zeros(count, np.float32)
        q_start = np.zeros(self.max_sequences + 1, np.int32)
        tables = np.zeros((self.max_sequences, self.max_blocks), np.int32)
        start = 0
        for index, piece in enumerate(pieces):
            rows = slice(start, start + len(piece.tokens))
            tokens[rows] = piece.tokens
            positions[rows] = np.arange(piece.start, piece.start + len(piece.tokens))
            sequence[rows] = index
            slot[rows] = piece.slot
            multiplier[rows] = piece.multiplier
            tables[index, : len(piece.blocks)] = piece.blocks
            start = rows.stop
            q_start[index + 1 :] = start
        rows_of = self.bucket(count)
        for buffer, values in (
            (rows_of.tokens, tokens),
            (rows_of.positions, positions),
            (rows_of.sequence, sequence),
            (rows_of.q_start, q_start),
            (rows_of.slot, slot),
            (rows_of.multiplier, multiplier),
        ):
            self.backend.write(buffer, values)
        if rows_of.block_tables is not None:
            self.backend.write(rows_of.block_tables, tables)

    def write_tables(self, pieces: Sequence[Piece]) -> None:
        """Only the blocks of the pieces, where all else stays as it is on the device."""
        assert self.rows.block_tables is not None
        tables = np.zeros((self.max_sequences, self.max_blocks), np.int32)
        for index, piece in enumerate(pieces):
            tables[index, : len(piece.blocks)] = piece.blocks
        self.backend.write(self.rows.block_tables, tables)
