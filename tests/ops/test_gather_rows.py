"""gather_rows and scatter_rows against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

CASES = [([0], 1), ([-1], 3), ([2, -1, 0], 3), ([126, 3, -1, 5, 0, -1, 64], 127)]


@pytest.mark.parametrize(("index", "count"), CASES)
@pytest.mark.parametrize("columns", [4, 12, 516])
def test_gather_equals_the_definition(both, rng, index, count, columns):
    x = rng.normal(size=(count, columns))

    def op(backend):
        out = backend.upload(np.full((len(index), columns), 7.0))
        backend.gather_rows(backend.upload(x), backend.upload(np.array(index), "i32"), out)
        return {"out": out}

    both.compare(op)


@pytest.mark.parametrize(("index", "count"), CASES)
@pytest.mark.parametrize("columns", [4, 12, 516])
def test_scatter_equals_the_definition(both, rng, index, count, columns):
    x = rng.normal(size=(len(index), columns))

    def op(backend):
        out = backend.upload(np.full((count, columns), 7.0))
        backend.scatter_rows(backend.upload(x), backend.upload(np.array(index), "i32"), out)
        return {"out": out}

    both.compare(op)


def test_more_rows_than_a_side_of_a_grid(both, rng):
    x, index = rng.normal(size=(3, 4)), rng.integers(-1, 3, 70001)

    def op(backend):
        out = backend.upload(np.full((len(index), 4), 7.0))
        backend.gather_rows(backend.upload(x), backend.upload(index, "i32"), out)
        return {"out": out}

    both.compare(op)
