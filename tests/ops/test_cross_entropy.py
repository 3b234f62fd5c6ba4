"""cross_entropy and its gradient against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

SIZES = [(1, 1), (3, 3), (5, 127), (129, 33), (2, 40009)]


def make_inputs(rng, rows, vocabulary):
    targets = rng.integers(0, vocabulary, rows)
    targets[1::3] = -1
    return rng.normal(size=(rows, vocabulary)) * 5, targets, rng.uniform(-1, 2, rows)


def loss(logits, targets, coefficients, backward):
    def op(backend):
        values, nll = backend.upload(logits), backend.upload(np.full(len(targets), 7.0))
        backend.cross_entropy(values, backend.upload(targets, "i32"), backend.upload(coefficients), nll, backward)
        return {"nll": nll, "logits": values}

    return op


@pytest.mark.parametrize(("rows", "vocabulary"), SIZES)
@pytest.mark.parametrize("backward", [True, False])
def test_equals_the_definition(both, rng, rows, vocabulary, backward):
    logits, targets, coefficients = make_inputs(rng, rows, vocabulary)
    op = loss(logits, targets, coefficients, backward)
    both.compare(op)
    found, _ = both.run(op)
    if backward:
        assert not found["logits"][targets < 0].any()
    else:
        np.testing.assert_array_equal(found["logits"], logits.astype(np.float32))


def test_large_logits_are_finite(both):
    logits = np.array([[1e4, -1e4, 0, 9999], [-3e4, -3e4, -3e4, -3e4], [500, 0, 0, 0]])
    op = loss(logits, np.array([3, 2, 1]), np.ones(3), True)
    both.compare(op)
