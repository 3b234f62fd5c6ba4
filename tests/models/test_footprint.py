"""How much memory a model needs: told before it is loaded, and when there is too little of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_chat import make_chat_model, open_chat_model
from tritune.backends.base import Backend
from tritune.backends.webgpu import WebGPUOptions, open_webgpu
from tritune.errors import OutOfMemoryError
from tritune.models.footprint import footprint
from tritune.models.weights import open_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("footprint"))


def test_the_need_is_what_loading_takes(path: Path, webgpu: Backend) -> None:
    need = footprint(open_model(path), 256)
    fresh = open_webgpu(f"webgpu:{webgpu.device.info.index}", WebGPUOptions(arena_bytes=256))  # type: ignore[attr-defined]
    model = open_chat_model(path, fresh)
    weights = fresh.stats.bytes_allocated
    _ = model._engines.cache
    cache = fresh.stats.bytes_allocated - weights
    fresh.close()
    assert cache == need.cache
    # The scales of the rows, parameters, and what alignment adds to small matrices.
    assert need.total - need.cache < weights < 1.5 * (need.total - need.cache) + (256 << 10)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.5, r"needs \d+\.\d\d GB: .* of weights, .* of keys and values"), (1.02, r"KiB asked for, .* of the limit of")],
)
def test_too_little_memory_is_told_and_the_process_goes_on(
    path: Path, webgpu: Backend, share: float, words: str
) -> None:
    """With the need before loading where it cannot fit at all, with the buffer's size where it almost does."""
    need = footprint(open_model(path), 256).total
    options = WebGPUOptions(memory_limit_bytes=int(need * share))
    small = open_webgpu(f"webgpu:{webgpu.device.info.index}", options)  # type: ignore[attr-defined]
    with pytest.raises(OutOfMemoryError, match=words):
        open_chat_model(path, small).generate("hello", max_tokens=1)
    one = small.upload(np.ones(4))
    assert np.asarray(small.read(one)).tolist() == [1] * 4
    small.close()
    assert open_chat_model(path, webgpu).generate("hello", max_tokens=2, ignore_eos=True)
