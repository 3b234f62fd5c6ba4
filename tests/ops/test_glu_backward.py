"""glu_backward against its definition."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("activation", ["relu2", "silu"])
@pytest.mark.parametrize("with_gain", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (3, 12), (127, 20), (129, 508), (2, 6912)])
def test_equals_the_definition(both, rng, activation, with_gain, in_place, rows, columns):
    gate_up = rng.normal(size=(rows, 2 * columns)) * rng.uniform(0.1, 10, size=(rows, 1))
    gain = rng.uniform(0.5, 2, size=columns)
    dy = rng.normal(size=(rows, columns))

    def op(backend):
        gates = backend.upload(gate_up)
        gradient = gates if in_place else backend.upload(np.full(gate_up.shape, 7.0))
        backend.glu_backward(
            gates, activation, backend.upload(gain) if with_gain else None, 1e-5, backend.upload(dy), gradient
        )
        return {"dgate_up": gradient}

    both.compare(op)
