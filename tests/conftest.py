"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend


@pytest.fixture(scope="session")
def webgpu() -> Iterator[Backend]:
    """One WebGPU backend for all tests (a software driver will do); skipped without one unless it is required."""
    from tritune.backends.webgpu import list_adapters, open_webgpu

    if not list_adapters() and not os.environ.get("TRITUNE_REQUIRE_WEBGPU"):
        pytest.skip("no WebGPU adapter")
    backend = open_webgpu("webgpu")
    yield backend
    backend.close()


@pytest.fixture(params=["numpy", "webgpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn."""
    if request.param == "numpy":
        return NumpyBackend()
    return request.getfixturevalue("webgpu")


@pytest.fixture
def reference() -> Backend:
    """The definitions in float64."""
    return NumpyBackend(np.float64)
