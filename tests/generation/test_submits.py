"""One submit a token, no device object made between tokens, and no memory that grows with the adapters tried."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tiny_chat import bytes_in_use, open_chat_model, prompt_of, strong_adapter
from tritune import Model
from tritune.backends.base import Backend
from tritune.generation import GenerationSettings


@pytest.mark.usefixtures("no_collection")
def test_a_token_is_one_submit_and_makes_no_device_object(model: Model) -> None:
    stats = model.backend.stats
    for adapter in (None, strong_adapter(model)):
        engine = model.engine(adapter)
        settings = GenerationSettings(max_tokens=40, temperature=0.9, top_k=20, top_p=0.9, repetition_penalty=1.1)
        counts: list[tuple[int, int, int]] = []
        before = stats.submits
        for _ in engine.generate(prompt_of(30), settings):
            counts.append((stats.submits, stats.objects, stats.bytes_allocated))
        ahead = 1 if model.backend.asynchronous else 0  # the next token is being computed when one is returned
        assert [count[0] - before for count in counts] == [min(i + ahead, 40) for i in range(1, 41)]
        assert counts[2][1:] == counts[-1][1:]  # the program of one row is made at the second token


def test_a_chunk_of_a_prompt_is_one_submit(model: Model) -> None:
    engine = model.engine()
    list(engine.generate(prompt_of(250), GenerationSettings(max_tokens=3)))
    before = model.backend.stats.submits
    next(engine.generate(prompt_of(250, seed=1), GenerationSettings(max_tokens=1)))
    assert model.backend.stats.submits - before == 1


def test_alternating_many_adapters_needs_no_more_memory(model_path: Path, webgpu: Backend) -> None:
    model = open_chat_model(model_path, webgpu)
    held: list[int] = []
    allocated: list[int] = []
    for seed in range(8):
        model.generate("hello", strong_adapter(model, seed), max_tokens=3)
        model.generate("hello", max_tokens=3)
        gc.collect()
        held.append(bytes_in_use(webgpu))
        allocated.append(webgpu.stats.bytes_allocated)
    assert held[2:] == [held[1]] * 6
    assert allocated[2:] == [allocated[1]] * 6


@pytest.mark.usefixtures("no_collection")
def test_alternating_needs_no_garbage_collector(model_path: Path, webgpu: Backend) -> None:
    """Buffers are given back when an engine is dropped, not some time later."""
    model = open_chat_model(model_path, webgpu)
    held: list[int] = []
    for seed in range(8):
        model.generate("hello", strong_adapter(model, seed), max_tokens=3)
        held.append(bytes_in_use(webgpu))
    assert held[2:] == [held[1]] * 6


def test_a_token_comes_before_the_next_one_is_there(
    model_path: Path, webgpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streaming is immediate: the host waits for the submit of the token that it returns, not for what it submitted
    after it."""
    model = open_chat_model(model_path, webgpu)
    polled: list[int | None] = []
    poll = webgpu.device.poll  # type: ignore[attr-defined]
    monkeypatch.setattr(webgpu.device, "poll", lambda which=None: (polled.append(which), poll(which)))  # type: ignore[attr-defined]
    last = 0
    for _ in model.engine().generate(prompt_of(10), GenerationSettings(max_tokens=8)):
        assert None not in polled
        assert max(polled) > last
        last = max(polled)
    assert len(polled) >= 8
