"""zero against its definition."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("size", [1, 3, 127, 129, 5003, 2_200_003])
def test_clears_every_element(both, size):
    def op(backend):
        buffer = backend.upload(np.ones(size))
        backend.zero(buffer)
        return {"buffer": buffer}

    both.compare(op, "exact")


def test_clears_a_view_and_nothing_else(both):
    def op(backend):
        buffer = backend.upload(np.ones(256))
        backend.zero(buffer.view(64, (4, 16)))
        return {"buffer": buffer}

    both.compare(op, "exact")


def test_clears_packed_codes(both):
    def op(backend):
        buffer = backend.upload(np.ones((3, 12)), "i8")
        backend.zero(buffer)
        return {"buffer": buffer}

    both.compare(op, "exact")
