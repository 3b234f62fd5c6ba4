"""Running the command line in this process, on a tiny model."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

import tritune
from command_line import Cli, Result
from tiny_text import make_text_model, write_rows
from tritune.cli.main import main


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command in this process; ``stdin``: what is piped into it."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's directory."""
    return make_text_model(tmp_path_factory.mktemp("tiny") / "tiny-model")


@pytest.fixture(scope="session")
def model(tiny: Path) -> tritune.Model:
    """The same model through the API."""
    return tritune.load(tiny, "numpy")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of rows."""
    return write_rows(tmp_path / "rows.jsonl")


@pytest.fixture(scope="session")
def adapter(model: tritune.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of the tiny model whose B is not zero."""
    made = tritune.Adapter.create(model, tritune.LoRAConfig(rank=4, alpha=8))
    made.parameters[:] = np.random.default_rng(0).normal(0, 0.3, made.parameters.size)
    path = tmp_path_factory.mktemp("adapters") / "random"
    made.save(path)
    return path
