"""A tiny model that speaks, on each backend in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_chat import make_chat_model, open_chat_model
from tritune import Model
from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("evaluation"), max_positions=1024)


@pytest.fixture
def model(model_path: Path, backend: Backend) -> Model:
    return open_chat_model(model_path, backend, activations="float")


@pytest.fixture(scope="session")
def numpy_model(model_path: Path) -> Model:
    return open_chat_model(model_path, NumpyBackend())
