"""tritune.train: what it learns, and what its settings change."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tiny_chat import chat_rows, open_chat_model, strong_adapter
from tritune import Adapter, ConfigError, DataError, LoRAConfig, Model, TrainConfig, train
from tritune.backends.base import Backend
from tritune.training import Callback, RunStart, StepLog, mean_loss

ROWS = chat_rows(12)
LORA = LoRAConfig(rank=4, alpha=8)
CONFIG = TrainConfig(lr=1e-2, max_steps=8, batch_tokens=128, max_seq_len=64, log_every=1, warmup=0, schedule="constant")


class Losses(Callback):
    """Collects every log."""

    def __init__(self) -> None:
        self.logs: list[StepLog] = []
        self.start: RunStart | None = None

    def on_start(self, start: RunStart) -> None:
        self.start = start

    def on_log(self, log: StepLog) -> None:
        self.logs.append(log)

    @property
    def values(self) -> list[float]:
        return [log.loss for log in self.logs]


def losses(model: Model, config: TrainConfig, lora: LoRAConfig = LORA) -> list[float]:
    heard = Losses()
    train(model, ROWS, lora, config, callbacks=[heard])
    return heard.values


def test_the_loss_falls_also_on_rows_that_were_held_out(model: Model) -> None:
    heard = Losses()
    config = replace(CONFIG, max_steps=20)
    adapter = train(model, ROWS, LORA, config, callbacks=[heard])
    assert np.mean(heard.values[-3:]) < 0.5 * heard.values[0]
    held_out = chat_rows(16)[12:]
    fresh = Adapter.create(model, LORA, seed=0)
    assert mean_loss(model, adapter, held_out, config) < 0.6 * mean_loss(model, fresh, held_out, config)


def test_both_backends_learn_along_the_same_curve(model_path: Path, webgpu: Backend, numpy_model: Model) -> None:
    config = replace(CONFIG, max_steps=20, lr=3e-3, grad_accumulation=2, warmup=0.2, schedule="cosine")
    expected = losses(numpy_model, config)
    found = losses(open_chat_model(model_path, webgpu), config)
    assert len(found) == 20
    np.testing.assert_allclose(found, expected, rtol=0.01)
    assert expected[-1] < 0.9 * expected[0]


def test_accumulation_equals_one_large_batch(model: Model) -> None:
    """Rows of 1 to 30 trained tokens, in one micro-batch or in several: every token of the step weighs the same."""
    rows = [{"instruction": f"say {n}", "output": "ok " * (1 + 7 * (n % 3))} for n in range(9)]
    config = replace(CONFIG, lr=1e-3, max_steps=1)
    whole = train(model, rows, LORA, replace(config, batch_tokens=2048))
    counted = Losses()
    train(model, rows, LORA, replace(config, batch_tokens=64, max_steps=0), callbacks=[counted])
    parts = len(counted.logs)
    assert parts > 3
    heard = Losses()
    small = replace(config, batch_tokens=64, grad_accumulation=parts)
    accumulated = train(model, rows, LORA, small, callbacks=[heard])
    assert heard.logs[0].tokens == sum(log.tokens for log in counted.logs)
    for name, tensor in accumulated.tensors().items():
        np.testing.assert_allclose(tensor, whole.tensors()[name], atol=2e-5, err_msg=name)


def test_weight_decay_clipping_and_rate_change_the_result(numpy_model: Model) -> None:
    config = replace(CONFIG, max_steps=2)
    plain = train(numpy_model, ROWS, LORA, config)
    for change in ({"weight_decay": 0.9}, {"clip": 1e-3, "eps": 1e-3}, {"lr": 2e-2}, {"beta1": 0.5}, {"beta2": 0.9}):
        other = train(numpy_model, ROWS, LORA, replace(config, **change))  # type: ignore[arg-type]
        assert not np.array_equal(plain.parameters, other.parameters), change


def test_the_same_seed_gives_the_same_adapter_and_another_another(numpy_model: Model) -> None:
    dropped = LoRAConfig(rank=4, alpha=8, dropout=0.3)
    config = replace(CONFIG, max_steps=3)
    first, again = (train(numpy_model, ROWS, dropped, config) for _ in range(2))
    assert np.array_equal(first.parameters, again.parameters)
    assert first.config.dropout == 0.3
    other = train(numpy_model, ROWS, dropped, replace(config, seed=7))
    assert not np.array_equal(first.parameters, other.parameters)


def test_dropout_changes_training_but_not_what_is_measured(model: Model) -> None:
    """One adapter, one order of rows: only the mask differs. Evaluation drops nothing."""
    config = replace(CONFIG, max_steps=2, lr=1e-3)
    start = strong_adapter(model)
    dropped = strong_adapter(model, dropout=0.5)
    assert np.array_equal(start.parameters, dropped.parameters)
    assert mean_loss(model, start, ROWS, config) == mean_loss(model, dropped, ROWS, config)
    heard, other = Losses(), Losses()
    train(model, ROWS, config=config, adapter=start, callbacks=[heard])
    train(model, ROWS, config=config, adapter=dropped, callbacks=[other])
    assert heard.values[0] != other.values[0]
    assert other.values[0] == pytest.approx(heard.values[0], rel=0.3)
    assert mean_loss(model, start, ROWS, config) == mean_loss(model, dropped, ROWS, config)


def test_the_rate_of_a_step_is_the_schedules(numpy_model: Model) -> None:
    """Warmup begins at zero, so the first step changes nothing; Adam's second step is about the rate of step 1."""
    config = replace(CONFIG, warmup=4, weight_decay=0, lr=4e-3)
    fresh = Adapter.create(numpy_model, LORA, seed=config.seed)
    first = train(numpy_model, ROWS, LORA, replace(config, max_steps=1))
    assert np.array_equal(first.parameters, fresh.parameters)
    second = train(numpy_model, ROWS, LORA, replace(config, max_steps=2))
    assert np.abs(second.parameters - fresh.parameters).max() == pytest.approx(1e-3, rel=0.1)


def test_each_micro_batch_has_a_mask_of_its_own(numpy_model: Model) -> None:
    """The same batch three times, at a rate of almost nothing: only the mask can change the loss."""
    start = strong_adapter(numpy_model, dropout=0.5)
    heard = Losses()
    config = replace(CONFIG, lr=1e-12, weight_decay=0, batch_tokens=1024, max_steps=3)
    train(numpy_model, ROWS[:1], config=config, adapter=start, callbacks=[heard])
    assert len(set(heard.values)) == 3


def test_both_backends_drop_the_same_elements(model_path: Path, webgpu: Backend, numpy_model: Model) -> None:
    lora = LoRAConfig(rank=4, alpha=8, dropout=0.4)
    expected = losses(numpy_model, replace(CONFIG, max_steps=4, lr=3e-3), lora)
    found = losses(open_chat_model(model_path, webgpu), replace(CONFIG, max_steps=4, lr=3e-3), lora)
    np.testing.assert_allclose(found, expected, rtol=0.01)


def test_layers_below_the_first_trained_one_are_left_alone(model: Model) -> None:
    config = replace(CONFIG, max_steps=3, start_layer=1)
    start = Adapter.create(model, LORA, seed=config.seed)
    adapter = train(model, ROWS, LORA, config)
    for name, tensor in adapter.tensors().items():
        same = np.array_equal(tensor, start.tensors()[name])
        # B of the first layer is zero and A decays by weight decay only; both layers' B move when trained.
        if "lora_B" in name:
            assert same == ("layers.0." in name), name


def test_training_goes_on_from_an_adapter_and_leaves_it_as_it_was(model: Model) -> None:
    config = replace(CONFIG, max_steps=10)
    first = train(model, ROWS, LORA, config)
    before = first.parameters.copy()
    heard = Losses()
    second = train(model, ROWS, config=config, adapter=first, callbacks=[heard])
    assert np.array_equal(first.parameters, before)
    assert second is not first
    assert heard.values[0] < 0.8 * losses(model, config)[0]
    assert mean_loss(model, second, ROWS, config) < mean_loss(model, first, ROWS, config)


def test_recomputation_changes_nothing(numpy_model: Model) -> None:
    lora = LoRAConfig(rank=4, alpha=8, dropout=0.2)
    config = replace(CONFIG, max_steps=3)
    adapters = [train(numpy_model, ROWS, lora, replace(config, recompute=value)) for value in (True, False)]
    np.testing.assert_array_equal(adapters[0].parameters, adapters[1].parameters)


def test_the_seed_orders_the_rows(numpy_model: Model) -> None:
    class Order(Callback):
        def __init__(self) -> None:
            self.tokens: list[int] = []

        def on_log(self, log: StepLog) -> None:
            self.tokens.append(log.tokens)

    rows = [{"instruction": f"say {n}", "output": "ok" * (n + 1)} for n in range(8)]
    config = replace(CONFIG, batch_tokens=64, max_steps=6)
    orders: list[list[int]] = []
    for seed in (1, 1, 2):
        heard = Order()
        train(numpy_model, rows, LORA, replace(config, seed=seed), callbacks=[heard])
        orders.append(heard.tokens)
    assert orders[0] == orders[1] != orders[2]


def test_epochs_and_accumulation_make_the_steps(numpy_model: Model) -> None:
    def steps(**change: object) -> tuple[int, list[float]]:
        heard = Losses()
        config = replace(CONFIG, max_steps=0, batch_tokens=64, **change)  # type: ignore[arg-type]
        train(numpy_model, ROWS, LORA, config, callbacks=[heard])
        assert heard.start is not None
        assert heard.start.total_steps == len(heard.logs) == heard.logs[-1].step
        return len(heard.logs), [log.epoch for log in heard.logs]

    one, epochs = steps()
    assert one > 2
    assert epochs[-1] == 1.0
    assert all(a < b for a, b in pairwise(epochs))
    assert steps(epochs=2.0)[0] in (2 * one - 1, 2 * one, 2 * one + 1)
    assert steps(epochs=0.01)[0] == 1
    assert steps(grad_accumulation=2)[0] == -(-one // 2)
    assert steps(grad_accumulation=50)[0] == 1


def test_what_cannot_be_trained_is_refused(numpy_model: Model) -> None:
    adapter = Adapter.create(numpy_model, LORA)
    with pytest.raises(ConfigError, match="either an adapter to start from or a LoRAConfig"):
        train(numpy_model, ROWS, LORA, CONFIG, adapter=adapter)
    with pytest.raises(ConfigError, match="start_layer 2: the model has layers 0 … 1"):
        train(numpy_model, ROWS, LORA, replace(CONFIG, start_layer=2))
    with pytest.raises(DataError, match="none of 12 rows can be trained: no answer fits max_seq_len 4"):
        train(numpy_model, ROWS, LORA, replace(CONFIG, max_seq_len=4))
    with pytest.raises(DataError):
        train(numpy_model, [], LORA, CONFIG)


def test_a_listener_may_measure_in_the_middle_of_a_run(model: Model) -> None:
    """It gets buffers of its own, so the run goes on as if nothing had happened."""
    config = replace(CONFIG, max_steps=4)
    fresh = Adapter.create(model, LORA)

    class Measures(Callback):
        def on_step(self, step: int) -> None:
            mean_loss(model, fresh, ROWS, config)

    plain = train(model, ROWS, LORA, config)
    measured = train(model, ROWS, LORA, config, callbacks=[Measures()])
    np.testing.assert_array_equal(measured.parameters, plain.parameters)
