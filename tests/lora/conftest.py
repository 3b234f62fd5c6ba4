"""Fixtures of the adapter tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_adapters import Files, random_adapter, read_directory, tiny_base
from tritune.lora import LoRAConfig


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A good adapter of q_proj and down_proj, to spoil."""
    path = tmp_path / "good"
    random_adapter(tiny_base(), LoRAConfig(rank=4, alpha=8, target_modules=["q_proj", "down_proj"])).save(path)
    return read_directory(path)
