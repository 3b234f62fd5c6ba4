"""The rows of an output head in int8, each with a scale: half the bytes of 16-bit floats, and no longer exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritune.formats.file_bytes import row_blocks
from tritune.models.weights import FloatTable
from tritune.ops.arrays import FloatArray, widen


class Int8Rows:
    """A RowSource of int8 codes [V, D]: row v of the table is nearly ``scales[v] * codes[v]``.

    scales[v] = max |row v| / 127, codes rounded half to even: a weight is off by half a scale at most.
    """

    def __init__(self, table: FloatTable) -> None:
        """Reads the table once, for the scales float32 [V]; the codes are made when they are asked for."""
        self._table = table
        self.shape = table.rows.shape
        blocks = row_blocks(self.shape[0], 4 * self.shape[1])
        largest = np.concatenate([np.abs(self._floats(rows)).max(axis=1) for rows in blocks])
        self.scales: NDArray[np.float32] = np.where(largest > 0, largest / np.float32(127), np.float32(1))

    def __getitem__(self, rows: slice, /) -> NDArray[np.int8]:
        return np.rint(self._floats(rows) / self.scales[rows, None]).astype(np.int8)

    def _floats(self, rows: slice) -> FloatArray:
        return widen(self._table.rows[rows], np.dtype(np.float32))
