"""An adapter trained here gives the same logits in peft + transformers, and one trained there the same here.

Ways a (rounding off) and c (free running) of the exactness tests.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch

from oracles.harness import EXACT, Example, Named, Ours, batch_of, error, example
from oracles.reference import Reference, identity, mean_loss, rounding
from tritune.backends.base import Backend
from tritune.lora import Adapter, LoRAConfig

LARGER: dict[str, Any] = {"hidden": 256, "layers": 20, "heads": 8, "ffn": 256, "vocab": 320}
LENGTH = 256  # short inputs of shallow models depend on which code flipped first: see test_free_running.py
CONFIGS = [(rank, rslora) for rank in (1, 8, 64) for rslora in (False, True)]
MARGIN = 1.5


def train_here(ours: Ours, config: LoRAConfig, items: list[Example], lr: float = 0.02) -> Adapter:
    """A few AdamW steps from a fresh adapter."""
    adapter = Adapter.create(Named(ours.config), config, seed=3)
    rows = sum(len(item.ids) for item in items)
    state = ours.training(adapter, rows)
    ours.backend.write(state.settings, np.array([lr, 0.9, 0.999, 1e-8, 0.0, 1.0, 0.1, 0.001], np.float32))
    for _ in range(4):
        state.forward_backward(batch_of(items, rows), update=True)
    adapter.parameters[:] = ours.backend.read(state.parameters)
    return adapter


def train_there(reference: Reference, config: LoRAConfig, items: list[Example], path: Path) -> None:
    """The same with peft and torch; saved by peft."""
    lora = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]
        use_rslora=config.rslora,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )
    model = peft.get_peft_model(copy.deepcopy(reference.model), lora)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    with rounding(identity):
        for _ in range(4):
            mean_loss(model, items).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(path)


def peft_logits(reference: Reference, path: Path, items: list[Example], forward: Any) -> Any:
    """Logits of all items, one after the other."""
    model = peft.PeftModel.from_pretrained(copy.deepcopy(reference.model), path).eval()
    with rounding(forward), torch.no_grad():
        return np.concatenate([model(input_ids=torch.tensor([item.ids])).logits[0].numpy() for item in items])


@pytest.mark.parametrize(("rank", "rslora"), CONFIGS)
def test_trained_here_runs_in_peft(rank: int, rslora: bool, backend: Backend, make, tmp_path: Path) -> None:
    directory, reference = make(hidden=32)
    ours = Ours(backend, directory, "float")
    items = [example(ours.config.vocab_size, 12, seed) for seed in range(2)]
    adapter = train_here(ours, LoRAConfig(rank=rank, alpha=2 * rank, rslora=rslora), items)
    adapter.save(tmp_path / "adapter")
    expected = peft_logits(reference, tmp_path / "adapter", items[:1], identity)
    assert error(reference.logits(items[0].ids, None, identity), expected) > 0.02  # training moved it
    assert error(ours.logits(items[0].ids, adapter), expected) <= EXACT


@pytest.mark.parametrize(("rank", "rslora"), CONFIGS)
def test_trained_in_peft_runs_here(rank: int, rslora: bool, backend: Backend, make, tmp_path: Path) -> None:
    directory, reference = make(hidden=32)
    ours = Ours(backend, directory, "float")
    items = [example(ours.config.vocab_size, 12, seed) for seed in range(2)]
    train_there(reference, LoRAConfig(rank=rank, alpha=2 * rank, rslora=rslora), items, tmp_path / "adapter")
    adapter = Adapter.load(tmp_path / "adapter", Named(ours.config, ""))
    expected = peft_logits(reference, tmp_path / "adapter", items[:1], identity)
    assert error(reference.logits(items[0].ids, None, identity), expected) > 0.02
    assert error(ours.logits(items[0].ids, adapter), expected) <= EXACT


def test_free_running(backend: Backend, make, tmp_path: Path) -> None:
    directory, eager = make(**LARGER)
    _, sdpa = make("sdpa", **LARGER)
    ours = Ours(backend, directory, "int8")
    items = [example(ours.config.vocab_size, LENGTH)]
    short = [example(ours.config.vocab_size, 32)]
    adapter = train_here(ours, LoRAConfig(rank=8, alpha=16), short, lr=0.001)
    adapter.save(tmp_path / "adapter")
    expected, other = (peft_logits(side, tmp_path / "adapter", items, None) for side in (eager, sdpa))
    found = ours.logits(items[0].ids, adapter)
    gap = error(other, expected)
    assert 0 < gap < 0.1
    assert min(error(found, expected), error(found, other)) <= MARGIN * gap
