"""Backends with other options than the shared one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tritune.backends.webgpu import WebGPUBackend, WebGPUOptions, open_webgpu


@pytest.fixture
def opened(webgpu: Any) -> Iterator[Callable[..., WebGPUBackend]]:
    """Opens backends with the options given, and closes them after the test."""
    backends: list[WebGPUBackend] = []

    def open_with(**options: Any) -> WebGPUBackend:
        backends.append(open_webgpu(f"webgpu:{webgpu.device.info.index}", WebGPUOptions(**options)))
        return backends[-1]

    yield open_with
    for backend in backends:
        backend.close()


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers in every test."""
    return np.random.default_rng(0)
