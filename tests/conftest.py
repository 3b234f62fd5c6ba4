"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's cache of tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITUNE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def webgpu() -> Iterator[Backend]:
    """One WebGPU backend for all tests (a software driver will do); skipped without one unless it is required."""
    from tritune.backends.webgpu import list_adapters, open_webgpu

    if not list_adapters() and not os.environ.get("TRITUNE_REQUIRE_WEBGPU"):
        pytest.skip("no WebGPU adapter")
    backend = open_webgpu("webgpu")
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def cpu() -> Iterator[Callable[..., Backend]]:
    """Opens CPU backends: ``cpu(threads=…, isa=…)``, each once for all tests.

    Skipped where the native code was not built, unless it is required.
    """
    from tritune.backends.cpu import native_problem, open_cpu

    problem = native_problem()
    if problem is not None and not os.environ.get("TRITUNE_REQUIRE_CPU"):
        pytest.skip(problem)
    opened: dict[tuple[int | None, str | None], Backend] = {}

    def get(threads: int | None = None, isa: str | None = None) -> Backend:
        if (threads, isa) not in opened:
            opened[threads, isa] = open_cpu(threads, isa)
        return opened[threads, isa]

    yield get
    for backend in opened.values():
        backend.close()


@pytest.fixture(params=["numpy", "cpu", "webgpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn."""
    if request.param == "numpy":
        return NumpyBackend()
    if request.param == "cpu":
        return request.getfixturevalue("cpu")()
    return request.getfixturevalue("webgpu")


@pytest.fixture
def reference() -> Backend:
    """The definitions in float64."""
    return NumpyBackend(np.float64)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Garbage of earlier tests is gone, and none is collected meanwhile: for tests that count memory of a backend that
    all tests share."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
