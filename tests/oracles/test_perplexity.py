"""Perplexity equals that of transformers' recipe for models of fixed length, on the same weights and stride."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from oracles.reference import Reference, identity, rounding
from tiny_chat import make_chat_model
from tritune import Model
from tritune.assets import BUILTIN_MODEL, DEMO_ROWS
from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend
from tritune.evaluation import run_task
from tritune.evaluation.text import Perplexity
from tritune.models.weights import open_model


def recipe(model: Any, tokens: list[int], max_length: int, stride: int) -> float:
    """The code of "Perplexity of fixed-length models" in transformers' documentation, line by line."""
    input_ids = torch.tensor([tokens])
    seq_len = input_ids.size(1)
    nll_sum, n_tokens, prev_end_loc = 0.0, 0, 0
    for begin_loc in range(0, seq_len, stride):
        end_loc = min(begin_loc + max_length, seq_len)
        trg_len = end_loc - prev_end_loc
        window = input_ids[:, begin_loc:end_loc]
        target_ids = window.clone()
        target_ids[:, :-trg_len] = -100
        with torch.no_grad():
            neg_log_likelihood = model(window, labels=target_ids).loss
        num_loss_tokens = int((target_ids != -100).sum()) - 1  # for the shift of the labels
        nll_sum += float(neg_log_likelihood) * num_loss_tokens
        n_tokens += num_loss_tokens
        prev_end_loc = end_loc
        if end_loc == seq_len:
            break
    return float(torch.exp(torch.tensor(nll_sum / n_tokens)))


@pytest.mark.parametrize("stride", [32, 64])
def test_tiny_model(tmp_path: Path, stride: int) -> None:
    """With the rounding on."""
    path = make_chat_model(tmp_path)
    model = Model(open_model(path), NumpyBackend())
    text = "It's a story: once upon a time there were 123 cats and 4567 dogs. How are you? " * 6
    task = Perplexity.of(text, model.tokenizer, 64, stride)
    with rounding(None):
        expected = recipe(Reference(path).model, task.tokens.tolist(), 64, stride)
    assert run_task(model, task).results["base"]["perplexity"] == pytest.approx(expected, rel=5e-3)


def test_built_in_model(cpu: Callable[[], Backend], make) -> None:
    """With the rounding off: over so few tokens transformers' eager and sdpa attention are 0.4% apart with it."""
    model = Model(open_model(BUILTIN_MODEL), cpu(), "float", context=64)
    task = Perplexity.of(DEMO_ROWS.read_text(encoding="utf-8"), model.tokenizer, 64, 32, limit=2)
    _, reference = make(path=BUILTIN_MODEL)
    with rounding(identity):
        expected = recipe(reference.model, task.tokens.tolist(), 64, 32)
    assert run_task(model, task).results["base"]["perplexity"] == pytest.approx(expected, rel=5e-3)
