"""Tokenizers of both kinds for the tests of this room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_tokenizer import write_directory
from tritune.text import Tokenizer

SHARED = Path(__file__).parents[3] / "shared"


@pytest.fixture(scope="session")
def bitnet(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """BOS, eot and eos behind the vocabulary; a user-defined ``<think>``."""
    return Tokenizer.from_directory(write_directory(tmp_path_factory.mktemp("bitnet")))


@pytest.fixture(scope="session")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """ChatML markup, no BOS."""
    return Tokenizer.from_directory(write_directory(tmp_path_factory.mktemp("chatml"), kind="chatml"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of larger samples beside the checkout; tests that need it are skipped where it is missing."""
    if not SHARED.is_dir():
        pytest.skip("the folder of larger samples is not there")
    return SHARED
