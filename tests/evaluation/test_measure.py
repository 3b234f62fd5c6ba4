"""evaluate: the task that some data is, and rows of training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_chat import chat_rows, strong_adapter
from tritune import AdapterError, ConfigError, DataError, Model, evaluate
from tritune.assets import BUILTIN_MODEL
from tritune.data import build_examples, read_rows
from tritune.lora import Adapter, LoRAConfig
from tritune.models.weights import open_model

ROWS = [*chat_rows(3, "no"), *chat_rows(2, "It's a story: once upon a time there were 123 cats")]


def test_the_loss_of_rows_is_that_of_their_trained_tokens(model: Model) -> None:
    adapter = strong_adapter(model)
    examples = build_examples(read_rows(ROWS), model.tokenizer, model.template, 1024).examples
    total = count = 0.0
    for example in examples:
        loss, _ = model.loss_and_gradients(example.tokens.tolist(), example.trained, adapter)
        total, count = total + loss * example.num_trained, count + example.num_trained
    found = evaluate(model, ROWS, {"mine": adapter})
    assert (found.task, found.unit, found.count) == ("loss", "rows", 5)
    assert found.results["mine"]["tokens"] == count
    assert found.results["mine"]["loss"] == pytest.approx(total / count, rel=1e-4)


def test_preferences(numpy_model: Model) -> None:
    rows = [
        {"prompt": "hello", "chosen": " fine", "rejected": " a story of dogs"},
        {"prompt": "a", "chosen": "b c", "rejected": "d"},
    ]
    found = evaluate(numpy_model, rows)
    assert (found.task, found.count) == ("preferences", 2)
    logps = {key: [_logp(numpy_model, row["prompt"], row[key]) for row in rows] for key in ("chosen", "rejected")}
    metrics = found.results["base"]
    assert metrics["logps_chosen"] == pytest.approx(np.mean(logps["chosen"]), rel=1e-4)
    assert metrics["logps_rejected"] == pytest.approx(np.mean(logps["rejected"]), rel=1e-4)
    assert metrics["margin"] == pytest.approx(np.mean(logps["chosen"]) - np.mean(logps["rejected"]), rel=1e-3)
    assert metrics["acc"] == np.mean(np.array(logps["chosen"]) > logps["rejected"])


def _logp(model: Model, prompt: str, completion: str) -> float:
    metrics = evaluate(model, [{"prompt": prompt, "completion": completion}]).results["base"]
    return -metrics["loss"] * metrics["tokens"]


def test_a_folder_is_measured_on_its_test_rows(numpy_model: Model, tmp_path: Path) -> None:
    for name, rows in (("train", ROWS[:1]), ("test", ROWS[1:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert evaluate(numpy_model, tmp_path).results == evaluate(numpy_model, ROWS[1:]).results


def test_limit_and_max_length(numpy_model: Model) -> None:
    assert evaluate(numpy_model, ROWS, limit=2).count == 2
    short = evaluate(numpy_model, ROWS, max_length=30)
    assert short.notes


@pytest.mark.parametrize(
    "options",
    [{"limit": 0}, {"max_length": 1}, {"max_length": 5000}, {"task": "accuracy"}, {"stride": 5}, {"task": "perplexity"},
     {"adapters": {}}],
)  # fmt: skip
def test_options_that_cannot_be(numpy_model: Model, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"expected|stride"):
        evaluate(numpy_model, ROWS, **options)


def test_rows_of_another_task_are_refused(numpy_model: Model) -> None:
    with pytest.raises(DataError, match="row 1: no 'question'"):
        evaluate(numpy_model, ROWS, task="choices")


def test_an_adapter_of_another_size_is_refused(numpy_model: Model) -> None:
    source = open_model(BUILTIN_MODEL)

    class Other:
        config, name = source.config, "other"

    with pytest.raises(AdapterError, match="made for hidden_size 512, this base has 32"):
        evaluate(numpy_model, ROWS, {"other": Adapter.create(Other(), LoRAConfig(rank=1))})
