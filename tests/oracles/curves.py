"""A whole fine-tuning in peft + transformers + torch: what tritune.train's loss curve is held against.

The same rows in the same order, the same initial adapter; the schedule is transformers', the optimizer torch's (or
peft's LoRA+), the clipping torch's. Nothing is padded: each sequence has a forward of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from peft.optimizers import create_loraplus_optimizer

from oracles.harness import Floats
from oracles.reference import Reference, Rounding, rounding, trainable
from tritune import Adapter, LoRAConfig, Model, TrainConfig, train
from tritune.models.training_state import MicroBatch, TrainingState
from tritune.training import Callback, StepLog
from tritune.training.config import warmup_steps

Packed = tuple[list[int], NDArray[np.int32]]


class Losses(Callback):
    """The loss of every step (log_every must be 1)."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, log: StepLog) -> None:
        self.values.append(log.loss)


@dataclass(frozen=True)
class Run:
    """A fine-tuning of tritune's."""

    losses: list[float]  # of the steps
    steps: list[list[Packed]]  # what each of them trained
    adapter: Adapter


def our_run(model: Model, rows: Any, lora: LoRAConfig, config: TrainConfig) -> Run:
    """Train, and write down which sequences a step has."""
    heard, steps = Losses(), [list[Packed]()]
    real = TrainingState.forward_backward

    def recorded(self: TrainingState, batch: MicroBatch, *, update: bool = False) -> None:
        start = 0
        for piece in batch.pieces:
            end = start + len(piece.tokens)
            steps[-1].append((list(piece.tokens), batch.targets[start:end].copy()))
            start = end
        if update:
            steps.append([])
        real(self, batch, update=update)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingState, "forward_backward", recorded)
        adapter = train(model, rows, lora, config, callbacks=[heard])
    return Run(heard.values, steps[:-1], adapter)


def optimizer_of(model: Any, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW as torch has it, or peft's LoRA+."""
    settings = {"betas": (config.beta1, config.beta2), "eps": config.eps, "weight_decay": config.weight_decay}
    if config.lora_plus_ratio == 1:
        return torch.optim.AdamW(list(trainable(model).values()), lr=config.lr, **settings)
    return create_loraplus_optimizer(
        model,
        torch.optim.AdamW,
        lr=config.lr,
        loraplus_lr_ratio=config.lora_plus_ratio,
        loraplus_weight_decay=config.weight_decay,
        **settings,
    )


def peft_curve(
    reference: Reference,
    adapter: Adapter,
    steps: Sequence[Sequence[Packed]],
    config: TrainConfig,
    forward: Rounding | None = None,
) -> tuple[list[float], dict[str, Floats]]:
    """Losses of the steps, and the adapter's tensors at the end. forward: what stands for the rounding (None: on)."""
    model = reference.with_adapter(adapter)
    parameters = list(trainable(model).values())
    optimizer = optimizer_of(model, config)
    name = {"constant": "constant_with_warmup"}.get(config.schedule, config.schedule)
    schedule = transformers.get_scheduler(name, optimizer, warmup_steps(config, config.max_steps), config.max_steps)
    losses: list[float] = []
    for sequences in steps:
        optimizer.zero_grad()
        count = sum(int((targets >= 0).sum()) for _, targets in sequences)
        total = 0.0
        with rounding(forward):
            for tokens, targets in sequences:
                logits = model(input_ids=torch.tensor([tokens])).logits[0]
                wanted = torch.tensor(targets.astype(np.int64))
                loss = torch.nn.functional.cross_entropy(logits, wanted, ignore_index=-1, reduction="sum") / count
                loss.backward()
                total += float(loss.detach())
        if config.clip:
            torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.step()
        schedule.step()
        losses.append(total)
    return losses, {name: p.detach().numpy() for name, p in trainable(model).items()}


def apart(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative distance of two curves at a step."""
    wanted = np.asarray(expected)
    return float(np.max(np.abs(np.asarray(found) - wanted) / wanted))


def distance(found: Sequence[float], expected: Sequence[float]) -> float:
    """The root mean square of two curves' distance, in nats per token."""
    return float(np.sqrt(np.mean(np.square(np.asarray(found) - np.asarray(expected)))))
