"""Models on disk and in transformers, each made once for all tests. The conftest.py of a room takes it up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from oracles.reference import Reference, multiplying_copy
from tiny_models import make_hf

Make = Callable[..., tuple[Path, Reference]]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """``make(attention, **model)``: the directory of a tiny model (or ``path``), and the model in transformers."""
    torch.set_num_threads(1)  # the models are tiny
    directories: dict[str, tuple[Path, Path]] = {}
    references: dict[tuple[str, str], Reference] = {}

    def get(attention: str = "eager", **model: Any) -> tuple[Path, Reference]:
        key = repr(sorted(model.items()))
        if "path" in model:
            directories[key] = (model["path"], model["path"])
        elif key not in directories:
            path = tmp_path_factory.mktemp("model")
            make_hf(path / "own", **model)
            directories[key] = (path / "own", multiplying_copy(path / "own", path / "reference"))
        own, converted = directories[key]
        if (key, attention) not in references:
            references[key, attention] = Reference(converted, attention)
        return own, references[key, attention]

    return get
