"""The training loop: batches in, optimizer steps on the device, an adapter out.

Each micro-batch is one submit; the last of a step carries the update with it. Loss, token counts, norms and the
finite check stay on the device and are read every log_every steps, so the host runs ahead of the device in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tritune.backends.base import OPTIMIZER_SETTINGS
from tritune.data import BatchStream, Example, build_examples, read_rows, show_example
from tritune.data.batches import Batch
from tritune.errors import ConfigError, TrainingError
from tritune.lora import Adapter, AdapterPool, LoRAConfig
from tritune.model import Model
from tritune.models.batch import Piece
from tritune.models.training_state import MicroBatch, TrainingState
from tritune.training.config import TrainConfig, learning_rate
from tritune.training.events import Listener, RunStart, StepLog
from tritune.training.log import JsonlLog

MAX_SKIPPED = 3
"""Steps in a row whose gradient may be non-finite before the run is stopped."""

SYNC_SECONDS = 0.5
"""How far the host may run ahead of the device, so that the progress bar tells the truth and Ctrl-C acts soon."""

Rows = str | Path | Sequence[Mapping[str, Any]]


def train(
    model: Model,
    rows: Rows,
    lora: LoRAConfig | None = None,
    config: TrainConfig | None = None,
    *,
    adapter: Adapter | None = None,
    output: str | Path | None = None,
    listeners: Sequence[Listener] = (),
) -> Adapter:
    """Fine-tune a model with LoRA and return the adapter.

    rows: a .json or .jsonl file, or a list of rows (Alpaca or chat messages). adapter: one to start from (a copy is
    trained; ``lora`` must then be None). output: a folder for the adapter, its checkpoints (``checkpoint-<step>``) and
    train.jsonl. Ctrl-C saves what was trained so far (if there is an output) and raises KeyboardInterrupt.
    Raises DataError, ConfigError, AdapterError, TrainingError (three steps in a row with non-finite gradients).
    """
    if adapter is not None and lora is not None:
        raise ConfigError("give either an adapter to start from or a LoRAConfig, not both")
    config = config or TrainConfig()
    trained = adapter.copy() if adapter is not None else Adapter.create(model, lora, seed=config.seed)
    if config.start_layer >= model.config.num_layers:
        raise ConfigError(f"start_layer {config.start_layer}: the model has layers 0 … {model.config.num_layers - 1}")
    examples, notes = _examples(model, rows, config)
    folder = None if output is None else Path(output)
    heard = [*([JsonlLog(folder)] if folder else []), *listeners]
    return Trainer(model, trained, examples, config, folder, heard).run(notes)


def _examples(model: Model, rows: Rows, config: TrainConfig) -> tuple[list[Example], list[str]]:
    limit = min(config.max_seq_len, config.batch_tokens, model.context_length)
    built = build_examples(read_rows(rows), model.tokenizer, model.template, limit)
    return built.examples, built.notes(limit)


def _batch_rows(examples: Sequence[Example], config: TrainConfig) -> int:
    """Rows of a micro-batch's buffers: batch_tokens, or fewer where all examples together have fewer."""
    total = sum(len(example) for example in examples)
    return min(config.batch_tokens, -(-total // 8) * 8)


@dataclass
class _Window:
    """What happened since the last log."""

    since: float
    rows: int = 0


class Trainer:
    """One run."""

    def __init__(
        self,
        model: Model,
        adapter: Adapter,
        examples: list[Example],
        config: TrainConfig,
        output: Path | None,
        listeners: Sequence[Listener],
    ) -> None:
        self.model = model
        self.adapter = adapter
        self.examples = examples
        self.config = config
        self.output = output
        self.listeners = listeners
        self.stream = BatchStream(examples, config.batch_tokens, config.seed)
        self.total_steps = config.max_steps or self._count_steps()
        self.pool: AdapterPool
        self.state: TrainingState
        self.pool, self.state = model.training_state(
            adapter,
            _batch_rows(examples, config),
            start_layer=config.start_layer,
            recompute=config.recompute,
            dropout=adapter.config.dropout,
            exclusive=True,  # a listener may compute a loss of its own in the middle of the run
        )

    def _count_steps(self) -> int:
        whole = int(self.config.epochs)
        counts = [self.stream.num_batches(epoch) for epoch in range(whole + 1)]
        micro = sum(counts[:whole]) + round((self.config.epochs - whole) * counts[whole])
        return max(1, -(-micro // self.config.grad_accumulation))

    def run(self, notes: Sequence[str] = ()) -> Adapter:
        """Train to the end."""
        self._reset()
        self._tell_start(notes)
        self._start = time.perf_counter()
        self._window = _Window(self._start)
        self._last_sync = self._start
        self._done = 0
        try:
            for step in range(1, self.total_steps + 1):
                self._step(step)
                if step % self.config.log_every == 0 or step == self.total_steps:
                    self._log(step)
                if self.config.save_every and step % self.config.save_every == 0 and step < self.total_steps:
                    self._save(step, checkpoint=True)
            self._save(self._done, checkpoint=False)
        except KeyboardInterrupt:
            self._save(self._done, checkpoint=False)
            raise
        finally:
            for listener in self.listeners:
                listener.on_end()
        return self.adapter

    def _reset(self) -> None:
        self.state.clear()
        self.state.prepare()

    def _tell_start(self, notes: Sequence[str]) -> None:
        start = RunStart(
            device=self.model.backend.description,
            num_examples=len(self.examples),
            total_steps=self.total_steps,
            trainable_parameters=self.adapter.num_parameters,
            first_example=show_example(self.examples[0], self.model.tokenizer, "⟦{}⟧".format),
            notes=notes,
        )
        for listener in self.listeners:
            listener.on_start(start)

    def _step(self, step: int) -> None:
        self._write_settings(learning_rate(self.config, step - 1, self.total_steps))
        for index in range(self.config.grad_accumulation):
            last = index == self.config.grad_accumulation - 1
            self._write_dropout((step - 1) * self.config.grad_accumulation + index)
            batch = next(self.stream)
            self.state.forward_backward(micro_batch(batch, self.state.max_rows), update=last)
            self._window.rows += len(batch.tokens)
        self._done = step
        if time.perf_counter() - self._last_sync > SYNC_SECONDS:
            self.model.backend.synchronize()
            self._last_sync = time.perf_counter()
        for listener in self.listeners:
            listener.on_step(step)

    def _write_settings(self, lr: float) -> None:
        c = self.config
        values = (lr, c.beta1, c.beta2, c.eps, c.weight_decay, c.clip, 1 - c.beta1, 1 - c.beta2)
        assert len(values) == len(OPTIMIZER_SETTINGS)
        self.model.backend.write(self.state.settings, np.array(values, np.float32))

    def _write_dropout(self, number: int) -> None:
        state = self.state.dropout_state
        if self.adapter.config.dropout and state is not None:
            self.model.backend.write(state, np.array([self.config.seed, number], np.uint32))

    def _log(self, step: int) -> None:
        totals, state = self.state.read_totals()
        now = time.perf_counter()
        skipped, in_a_row = int(state["skipped"]), int(state["skipped_in_a_row"])
        if in_a_row >= MAX_SKIPPED:
            raise TrainingError(
                f"step {step}: the gradients of {in_a_row} steps in a row were not finite; "
                "the last saved adapter is kept (try a lower lr, or look for broken rows)"
            )
        epoch = self.stream.position.epoch + self.stream.position.batch / self.stream.num_batches(
            self.stream.position.epoch
        )
        log = StepLog(
            step=step,
            total_steps=self.total_steps,
            epoch=round(epoch, 4),
            loss=totals["log_loss"] / totals["log_tokens"] if totals["log_tokens"] else math.nan,
            lr=learning_rate(self.config, step - 1, self.total_steps),
            grad_norm=state["grad_norm"],
            tokens=int(totals["log_tokens"]),
            rows=self._window.rows,
            seconds=round(now - self._start, 3),
            tokens_per_second=round(self._window.rows / max(now - self._window.since, 1e-9), 1),
            skipped_steps=skipped,
        )
        self._window = _Window(now)
        for listener in self.listeners:
            listener.on_log(log)

    def _save(self, step: int, checkpoint: bool) -> None:
        parameters = self.pool.read()
        if not np.isfinite(parameters).all():
            raise TrainingError(
                f"step {step}: the adapter holds numbers that are not finite; the last saved adapter is kept "
                "(try a lower lr)"
            )
        self.adapter.parameters[:] = parameters
        if self.output is None:
            return
        path = self.output / f"checkpoint-{step}" if checkpoint else self.output
        self.adapter.save(path)
        for listener in self.listeners:
            listener.on_save(path, step)


def micro_batch(batch: Batch, max_rows: int) -> MicroBatch:
    """A packed batch as the training state takes it; every row uses the pool's first adapter."""
    starts = batch.q_start.tolist()
    pieces = [Piece(batch.tokens[a:b].tolist(), 0, 1) for a, b in pairwise(starts)]
    targets = np.full(max_rows, -1, np.int32)
    targets[: len(batch.targets)] = batch.targets
    return MicroBatch(pieces, targets)


def mean_loss(model: Model, adapter: Adapter, rows: Rows, config: TrainConfig | None = None) -> float:
    """Loss per trained token of rows, without training: of held-out rows, say. Raises DataError, ConfigError."""
    config = config or TrainConfig()
    examples, _ = _examples(model, rows, config)
    stream = BatchStream(examples, config.batch_tokens, config.seed)
    _, state = model.training_state(adapter, _batch_rows(examples, config))
    state.clear()
    for batch in stream.epoch():
        state.forward_loss(micro_batch(batch, state.max_rows))
    loss, count = model.backend.read(state.totals)[:2].tolist()
    return loss / count
