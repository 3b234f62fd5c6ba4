"""rms_norm_backward against its definition."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (3, 12), (127, 20), (129, 508), (2, 2560)])
@pytest.mark.parametrize("output", ["new", "in_place", "accumulate"])
def test_equals_the_definition(both, rng, rows, columns, output):
    x, dy, before = rng.normal(size=(3, rows, columns)) * rng.uniform(0.1, 10, size=(3, rows, 1))
    gain = rng.uniform(0.5, 2, size=columns)

    def op(backend):
        dy_buffer = backend.upload(dy)
        dx = dy_buffer if output == "in_place" else backend.upload(before)
        backend.rms_norm_backward(backend.upload(x), backend.upload(gain), 1e-5, dy_buffer, dx, output == "accumulate")
        return {"dx": dx}

    both.compare(op)
