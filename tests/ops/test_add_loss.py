"""add_loss against its definition."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("count", [1, 3, 127, 129, 1031])
def test_adds_to_the_step_and_leaves_the_log(both, rng, count):
    nll, coefficients = rng.uniform(0, 5, count), rng.integers(0, 2, count)

    def op(backend):
        totals = backend.upload(np.array([1.5, 2, 3.5, 4]))
        for _ in range(2):
            backend.add_loss(backend.upload(nll), backend.upload(coefficients), totals)
        return {"totals": totals}

    both.compare(op)
    found, _ = both.run(op)
    np.testing.assert_array_equal(found["totals"][2:], [3.5, 4])
