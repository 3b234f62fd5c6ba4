"""TrainConfig and the schedules, against transformers'."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from tritune import ConfigError, TrainConfig
from tritune.training.config import learning_rate, warmup_steps

WRONG = [
    ("lr", 0),
    ("lr", float("nan")),
    ("lr", "2e-4"),
    ("lr", True),
    ("beta1", 1.0),
    ("beta2", -0.1),
    ("eps", 0.0),
    ("weight_decay", -1),
    ("weight_decay", float("inf")),
    ("clip", -0.5),
    ("schedule", "cosin"),
    ("schedule", None),
    ("warmup", -0.1),
    ("epochs", 0),
    ("max_steps", -1),
    ("max_steps", 2.5),
    ("batch_tokens", 1),
    ("batch_tokens", 64.0),
    ("micro_batch_tokens", 1),
    ("micro_batch_tokens", 1025),
    ("grad_accumulation", 0),
    ("packing", "yes"),
    ("max_seq_len", 1),
    ("prompt_style", "chatml"),
    ("system", 3),
    ("train_on", "first"),
    ("seed", -1),
    ("seed", 2**32),
    ("seed", 4.2),
    ("log_every", 0),
    ("save_every", -1),
    ("keep", 0),
    ("eval_every", -1),
    ("eval_split", -0.1),
    ("patience", -1),
    ("sample_prompts", "hello"),
    ("sample_prompts", ("hello", 3)),
    ("sample_tokens", 0),
    ("lora_plus_ratio", 0.0),
    ("neftune_alpha", -1),
    ("start_layer", -1),
    ("method", "ppo"),
    ("dpo_beta", 0),
    ("dpo_label_smoothing", 0.5),
    ("recompute", "yes"),
    ("recompute", 1),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_out_of_range_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: expected .*, found ") as caught:
        TrainConfig(**{name: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_every_number_has_a_wrong_value_above() -> None:
    assert {name for name, _ in WRONG} == {field.name for field in fields(TrainConfig)}


def test_whole_numbers_will_do_for_floats_and_numpy_numbers_for_both() -> None:
    TrainConfig(lr=1, warmup=10, epochs=3, clip=0, weight_decay=0)
    TrainConfig(lr=np.float32(1e-3), max_steps=np.int64(5), seed=np.uint32(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 0.05, 0.3, 1, 7])
@pytest.mark.parametrize("total", [1, 2, 7, 20, 101])
def test_rates_are_those_of_transformers(schedule: str, warmup: float, total: int) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = TrainConfig(lr=3e-4, schedule=schedule, warmup=warmup)  # type: ignore[arg-type]
    warm = warmup_steps(config, total)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=config.lr)
    name = {"constant": "constant_with_warmup"}.get(schedule, schedule)
    lambdas = transformers.get_scheduler(name, optimizer, warm, total)
    for step in range(total):
        assert learning_rate(config, step, total) == pytest.approx(lambdas.get_last_lr()[0], rel=1e-12, abs=1e-18)
        optimizer.step()
        lambdas.step()


@pytest.mark.parametrize(("warmup", "total", "steps"), [(0.05, 100, 5), (0.05, 101, 6), (0.05, 1, 1), (3, 2, 3)])
def test_a_share_of_the_steps_is_rounded_up_as_in_transformers(warmup: float, total: int, steps: int) -> None:
    transformers = pytest.importorskip("transformers")
    assert warmup_steps(TrainConfig(warmup=warmup), total) == steps
    arguments = transformers.TrainingArguments(output_dir="unused", warmup_steps=warmup, report_to=[], use_cpu=True)
    assert arguments.get_warmup_steps(total) == steps
