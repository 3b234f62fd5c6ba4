"""Pieces of sequences as the device sees them."""

from __future__ import annotations

import numpy as np

from tritune.backends.base import Backend
from tritune.models.batch import Piece, RowBuffers


def test_pieces_become_rows(backend: Backend) -> None:
    buffers = RowBuffers(backend, 64, 4, max_blocks=3)
    pieces = [Piece([5, 6, 7], 40, 2, 0.5, (4, 1)), Piece([8]), Piece([9, 10], 2, 1, 2.0, (0,))]
    buffers.write(pieces, 8)
    rows = buffers.bucket(8)
    expected = {
        "tokens": [5, 6, 7, 8, 9, 10, 0, 0],
        "positions": [40, 41, 42, 0, 2, 3, -1, -1],
        "sequence": [0, 0, 0, 1, 2, 2, 0, 0],
        "slot": [2, 2, 2, 0, 1, 1, 0, 0],
        "multiplier": [0.5, 0.5, 0.5, 1, 2, 2, 0, 0],
        "q_start": [0, 3, 4, 6, 6],
        "block_tables": [[4, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(backend.read(getattr(rows, name)), values, err_msg=name)


def test_a_shorter_batch_leaves_nothing_of_a_longer_one(backend: Backend) -> None:
    buffers = RowBuffers(backend, 16, 4)
    buffers.write([Piece([5] * 6, 3, 1), Piece([6] * 5, 9, 2)], 16)
    buffers.write([Piece([7])], 16)
    rows = buffers.rows
    assert backend.read(rows.positions).tolist() == [0] + [-1] * 15
    assert backend.read(rows.slot).tolist() == [0] * 16
    assert backend.read(rows.q_start).tolist() == [0, 1, 1, 1, 1]
    assert rows.block_tables is None
    assert buffers.bucket(4).tokens.shape == (4,)


def test_no_pieces_are_a_batch_of_spare_rows(backend: Backend) -> None:
    buffers = RowBuffers(backend, 4, 2)
    buffers.write([], 4)
    assert backend.read(buffers.rows.positions).tolist() == [-1] * 4
    assert backend.read(buffers.rows.q_start).tolist() == [0, 0, 0]
