"""One submit a micro-batch, the update included, and no device object made in the step loop."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tiny_chat import bytes_in_use, open_chat_model
from tritune import LoRAConfig, Model, TrainConfig, train
from tritune.backends.base import Backend
from tritune.training import Callback, RunStart

ROWS = [
    {"messages": [{"role": "user", "content": "hi " * (1 + n % 5)}, {"role": "assistant", "content": "ok " * (1 + n)}]}
    for n in range(20)
]
CONFIG = TrainConfig(max_steps=9, batch_tokens=96, max_seq_len=96, log_every=100, grad_accumulation=2)


class Counts(Callback):
    """Submits and device objects at the start and after every step."""

    def __init__(self, model: Model) -> None:
        self.stats = model.backend.stats
        self.submits: list[int] = []
        self.objects: list[int] = []

    def note(self) -> None:
        self.submits.append(self.stats.submits)
        self.objects.append(self.stats.objects)

    def on_start(self, start: RunStart) -> None:
        self.note()

    def on_step(self, step: int) -> None:
        self.note()


@pytest.mark.parametrize("change", [{}, {"grad_accumulation": 1}, {"recompute": False}, {"start_layer": 1}])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_micro_batch_is_one_submit(model: Model, change: dict[str, int], dropout: float) -> None:
    heard = Counts(model)
    config = replace(CONFIG, **change)  # type: ignore[arg-type]
    train(model, ROWS, LoRAConfig(rank=4, dropout=dropout), config, callbacks=[heard])
    steps = [after - before for before, after in pairwise(heard.submits)]
    assert steps == [config.grad_accumulation] * 9
    assert heard.objects == [heard.objects[0]] * 10


@pytest.mark.usefixtures("no_collection")
def test_a_run_gives_its_memory_back(model_path: object, webgpu: Backend) -> None:
    model = open_chat_model(model_path, webgpu)  # type: ignore[arg-type]
    held: list[int] = []
    for rank in (4, 8, 4, 8, 4, 8):
        train(model, ROWS, LoRAConfig(rank=rank), replace(CONFIG, max_steps=1))
        held.append(bytes_in_use(webgpu))
    assert len(set(held)) == 1
