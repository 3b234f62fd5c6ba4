"""The loss curve of a whole fine-tuning is that of peft + transformers: rounding off, and no further apart with it on
than transformers is from itself. benchmarks/train_vs_peft.py does it with the built-in model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oracles.curves import apart, distance, our_run, peft_curve
from oracles.fixtures import Make
from oracles.harness import error
from oracles.reference import Reference, identity
from tiny_chat import VOCABULARY, open_chat_model
from tiny_tokenizer import write_directory
from tritune import Adapter, LoRAConfig, TrainConfig
from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend

ROWS = [
    {"instruction": f"say {n}", "input": "now" if n % 3 else "", "output": "ok " * (1 + 7 * (n % 3)) + str(n)}
    for n in range(14)
]
LORA = LoRAConfig(rank=4, alpha=8, rank_pattern={"q_proj": 2})
CONFIG = TrainConfig(lr=5e-3, max_steps=50, batch_tokens=64, max_seq_len=64, log_every=1, grad_accumulation=2)
MODEL = {"hidden": 32, "ffn": 52, "vocab": VOCABULARY}


def prepared(make: Make, attention: str = "eager", **model: object) -> tuple[Path, Reference]:
    """A tiny model that has a tokenizer."""
    directory, reference = make(attention, **{**MODEL, **model})
    write_directory(directory, kind="chatml")
    return directory, reference


@pytest.mark.parametrize(
    "change",
    [{}, {"lora_plus_ratio": 8.0, "weight_decay": 0.2, "lr": 1e-3}, {"micro_batch_tokens": 48, "schedule": "linear"}],
    ids=["plain", "LoRA+", "micro-batches"],
)
def test_with_the_rounding_off_the_curves_are_one(make: Make, backend: Backend, change: dict[str, object]) -> None:
    if backend.name == "numpy" and change:
        pytest.skip("shown on the CPU backend")
    steps = 50 if backend.name == "cpu" else 8
    config = replace(CONFIG, max_steps=steps, **change)  # type: ignore[arg-type]
    directory, reference = prepared(make)
    model = open_chat_model(directory, backend, activations="float")
    ours = our_run(model, ROWS, LORA, config)
    start = Adapter.create(model, LORA, seed=config.seed)
    expected, tensors = peft_curve(reference, start, ours.steps, config, identity)
    assert len(ours.losses) == steps
    assert expected[-1] < (0.5 if steps == 50 else 0.95) * expected[0]
    assert apart(ours.losses, expected) <= 1e-3
    for name, tensor in ours.adapter.tensors().items():
        assert error(tensor, tensors[name]) < 0.02, name


def test_with_the_rounding_on_they_are_no_further_apart_than_transformers_from_itself(make: Make) -> None:
    """Once a code has flipped, curves go their own ways by chance: four orders of the rows are taken together."""
    sizes: dict[str, object] = {"hidden": 128, "layers": 8, "heads": 8, "ffn": 128}
    directory, eager = prepared(make, **sizes)
    _, sdpa = prepared(make, "sdpa", **sizes)
    model = open_chat_model(directory, NumpyBackend())
    found, first, second = [], [], []
    for seed in range(4):
        config = replace(CONFIG, max_steps=5, grad_accumulation=1, seed=seed)
        start = Adapter.create(model, LORA, seed=seed)
        ours = our_run(model, ROWS, LORA, config)
        found += ours.losses
        first += peft_curve(eager, start, ours.steps, config)[0]
        second += peft_curve(sdpa, start, ours.steps, config)[0]
    gap = distance(first, second)
    assert 0 < gap < 0.1
    assert min(distance(found, first), distance(found, second)) <= 1.5 * gap
