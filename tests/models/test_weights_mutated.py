"""Model files with a few bytes or fields changed: they load, or are refused in one line; nothing else happens."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_gguf import make_gguf
from tiny_models import make_hf
from tritune.errors import ModelFileError
from tritune.models.weights import open_model


@contextmanager
def one_line_or_nothing() -> Iterator[None]:
    """Accept a ModelFileError of one line, and little memory."""
    tracemalloc.start()
    try:
        yield
    except ModelFileError as error:
        assert "\n" not in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 20_000_000


def read_all(path: Path) -> None:
    source = open_model(path)
    for table in (source.embedding(), source.head()):
        assert table is None or table.data.ndim == 2
    source.final_norm()
    for index in range(source.config.num_layers):
        source.layer(index)


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], bytes]:
    path = tmp_path_factory.mktemp("hf")
    model = make_hf(path, layers=1, vocab=20, linear_class="bitlinear")
    return path, model.config, (path / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    make_gguf(path, layers=1, vocab=20, separate_scales=True)
    return path, path.read_bytes()


def mutate(data: st.DataObject, content: bytes, path: Path, first: int) -> None:
    """Change up to four bytes, most of them among the ``first`` ones, where the header is."""
    changed = bytearray(content)
    position = st.integers(0, first) | st.integers(0, len(content) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(position)] = data.draw(st.integers(0, 255))
    path.unlink()  # the last example may still be open
    path.write_bytes(changed)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_safetensors(hf: tuple[Path, dict[str, Any], bytes], data: st.DataObject) -> None:
    path, config, content = hf
    (path / "config.json").write_text(json.dumps(config))
    mutate(data, content, path / "model.safetensors", 4000)
    with one_line_or_nothing():
        read_all(path)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
JSON = VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.text(max_size=3), VALUES, max_size=2)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_config(hf: tuple[Path, dict[str, Any], bytes], data: st.DataObject) -> None:
    path, config, content = hf
    changed = json.loads(json.dumps(config))
    for section in (changed, changed["quantization_config"], changed["rope_parameters"]):
        if data.draw(st.booleans()):
            section[data.draw(st.sampled_from(sorted(section)))] = data.draw(JSON)
    (path / "model.safetensors").write_bytes(content)
    (path / "config.json").write_text(json.dumps(changed))
    with one_line_or_nothing():
        read_all(path)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_gguf(gguf: tuple[Path, bytes], data: st.DataObject) -> None:
    path, content = gguf
    mutate(data, content, path, 3000)
    with one_line_or_nothing():
        read_all(path)
