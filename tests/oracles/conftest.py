"""Models on disk and in transformers, each made once for all tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_models import make_hf

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from oracles.reference import Reference, multiplying_copy  # noqa: E402  (needs what is asked for above)

torch.set_num_threads(1)  # the models are tiny
Make = Callable[..., tuple[Path, Reference]]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """``make(attention, **model)``: the directory of a tiny model, and the model in transformers."""
    directories: dict[str, tuple[Path, Path]] = {}
    references: dict[tuple[str, str], Reference] = {}

    def get(attention: str = "eager", **model: Any) -> tuple[Path, Reference]:
        key = repr(sorted(model.items()))
        if key not in directories:
            path = tmp_path_factory.mktemp("model")
            make_hf(path / "own", seed=len(directories), **model)
            directories[key] = (path / "own", multiplying_copy(path / "own", path / "reference"))
        own, converted = directories[key]
        if (key, attention) not in references:
            references[key, attention] = Reference(converted, attention)
        return own, references[key, attention]

    return get
