"""next_rows: the rows that follow the tokens that were just drawn, one a sequence."""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import IntArray


def next_rows(drawn: IntArray, tokens: IntArray, positions: IntArray) -> tuple[IntArray, IntArray]:
    """(tokens, positions) [T]: row s < S holds drawn[s] of drawn [S], one position further on; spare rows (-1) stay."""
    used = np.flatnonzero(positions[: len(drawn)] >= 0)
    tokens, positions = tokens.copy(), positions.copy()
    tokens[used] = drawn[used]
    positions[used] += 1
    return tokens, positions
