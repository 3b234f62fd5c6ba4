"""Numbers for the tests of the CPU backend."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers in every test."""
    return np.random.default_rng(0)
