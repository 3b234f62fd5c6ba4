"""next_rows against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.base import Rows


@pytest.mark.parametrize(("sequences", "rows"), [(1, 1), (3, 4), (4, 3), (300, 512)])
def test_equals_the_definition(both, rng, sequences, rows):
    drawn, tokens = rng.integers(0, 1000, sequences), rng.integers(0, 1000, rows)
    positions = rng.integers(-1, 3, rows)

    def op(backend):
        buffers = [backend.upload(values, "i32") for values in (tokens, positions)]
        other = backend.upload(np.zeros(rows), "i32")
        backend.next_rows(backend.upload(drawn, "i32"), Rows(*buffers, other, other, other, backend.empty((rows,))))
        return dict(zip(("tokens", "positions"), buffers, strict=True))

    both.compare(op)
