"""The training loop: batches in, optimizer steps on the device, an adapter out.

Each micro-batch is one submit; the last of a step carries the update with it. Loss, token counts, norms and the
finite check stay on the device and are read every log_every steps, so the host runs ahead of the device in between.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritune.backends.base import OPTIMIZER_SETTINGS
from tritune.data import Dataset, DataStream, Item, StreamPosition, show_example
from tritune.data.batches import Batch
from tritune.errors import DataError, TrainingError
from tritune.lora import Adapter, AdapterPool
from tritune.lora.types import Floats
from tritune.model import Model
from tritune.training.checkpoint import Checkpoint, Progress, prune, save_checkpoint
from tritune.training.config import TrainConfig, learning_rate, micro_batches_of
from tritune.training.events import Callback, EndReason, EvalLog, RunEnd, RunStart, SampleLog, StepLog
from tritune.training.heldout import HeldOut
from tritune.training.interrupts import Interrupts
from tritune.training.neftune import neftune_noise
from tritune.training.objective import Objective

MAX_SKIPPED = 3
"""Steps in a row whose gradient may be non-finite before the run is stopped."""

EVALUATIONS = 10
"""Of a run whose eval_every is 0."""


@dataclass(frozen=True)
class Plan:
    """What a run is made of. ``config.micro_batch_tokens`` is a number that fits the device."""

    model: Model
    adapter: Adapter  # trained in place
    dataset: Dataset
    held_out: Sequence[Item]
    config: TrainConfig
    output: Path | None
    settings: Mapping[str, Any]  # as checkpoints record them
    notes: Sequence[str]
    checkpoint: Checkpoint | None = None  # to go on from


class Trainer:
    """One run."""

    def __init__(self, plan: Plan, pool: AdapterPool, objective: Objective, callbacks: Sequence[Callback]) -> None:
        """pool and objective: with the adapter's weights loaded, of nobody else's, for micro-batches as the plan
        has."""
        self.plan, self.model, self.config = plan, plan.model, plan.config
        self.pool, self.objective, self.state, self.callbacks = pool, objective, objective.state, callbacks
        self.adapter, self.output = plan.adapter, plan.output
        self.progress = plan.checkpoint.progress if plan.checkpoint else Progress()
        self.stream = self._stream(StreamPosition())
        self._counts_rows = not self.config.max_steps and not self.stream.is_one_window
        self.held_out = HeldOut(plan.held_out, self.config.micro_batch_tokens) if plan.held_out else None
        self.micro_batches = micro_batches_of(self.config)
        self.planned_steps = self.config.max_steps or -(
            -self.stream.estimate_batches(self.config.epochs) // self.micro_batches
        )
        if self.progress.micro:
            self.stream = self._stream(StreamPosition(self.progress.epoch, self.progress.row, self.progress.batch))
        self.eval_every = self.config.eval_every or -(-self.planned_steps // EVALUATIONS)
        self.interrupts = Interrupts()
        self.best: Floats | None = None  # the parameters of progress.best_step
        self._saved = self.progress.step if plan.checkpoint else -1
        self._reason: EndReason = "failed"
        self._told: list[str] = []  # about rows, at the start

    def _stream(self, position: StreamPosition) -> DataStream:
        config = self.config
        return DataStream(self.plan.dataset, config.micro_batch_tokens, config.seed, position, config.packing)

    @property
    def is_done(self) -> bool:
        """Whether all steps were done, or all rows taken."""
        if not self._counts_rows:
            return self.progress.step >= self.planned_steps
        return self.stream.epochs_done >= self.config.epochs

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run: of one that counts rows an estimate, until the last."""
        step = self.progress.step
        return step if self.is_done else max(self.planned_steps, step + 1)

    # -- the run ------------------------------------------------------------------------------------------------------
    def run(self) -> Adapter:
        """Train to the end."""
        self.state.clear()
        self.objective.prepare(evaluation=self.held_out is not None)
        if self.plan.checkpoint is not None:
            self.state.restore(self.plan.checkpoint.arrays)
        self._tell(lambda callback: callback.on_start(self._start_event()))
        self._begun = self._window_since = time.perf_counter()
        try:
            with self.interrupts:
                self._loop()
        finally:
            best = self.progress.best_step
            end = RunEnd(
                step=self.progress.step,
                reason=self._reason,
                best_step=best if best >= 0 else None,
                best_eval_loss=self.progress.best_loss if best >= 0 else None,
                notes=tuple(note for note in self.plan.dataset.notes() if note not in self._told),
            )
            self._tell(lambda callback: callback.on_end(end))
        return self.adapter

    def _loop(self) -> None:
        try:
            self._after_step()
            while not self.is_done and not self._out_of_patience():
                self._step()
                self._after_step()
            self._reason = "finished" if self.is_done else "patience"
            self._finish()
        except DataError:  # a row of a long file that cannot be used: what was trained up to it is not lost
            if self.progress.step:
                self._finish()
            raise
        except KeyboardInterrupt:
            self._reason = "interrupted"
            if self.progress.step and not self.interrupts.at_once:
                self._finish()
            raise

    def _step(self) -> None:
        """One optimizer step. It counts as done once its update was handed to the device: an interrupt before leaves
        no trace in what is saved."""
        progress, rows = self.progress, 0
        lr = self.learning_rate(progress.step)
        self._write_settings(lr)
        for index in range(self.micro_batches):
            self.interrupts.check()
            self._write_dropout(progress.micro + index)
            batch = next(self.stream)
            self._write_noise(progress.micro + index, batch)
            last = index == self.micro_batches - 1
            self.objective.forward_backward(batch, update=last)
            rows += len(batch.tokens)
        progress.step += 1
        progress.micro += self.micro_batches
        progress.window_rows += rows
        progress.lr, at = lr, self.stream.position
        progress.epoch, progress.row, progress.batch = at.epoch, at.row, at.batch
        self._tell(lambda callback: callback.on_step(progress.step))

    def _after_step(self) -> None:
        """What is due now and was not done before the run was stopped."""
        step, last = self.progress.step, self.is_done
        if self.progress.logged < step and (step % self.config.log_every == 0 or last):
            self._log()
        if self.held_out and self.progress.evaluated < step and (step % self.eval_every == 0 or last):
            self._evaluate(self.held_out)
        if self.config.save_every and step and step % self.config.save_every == 0:
            self._checkpoint()

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.worse

    def learning_rate(self, step: int) -> float:
        """Of optimizer step ``step``, from 0: the next one where rows are counted."""
        if self._counts_rows:
            return learning_rate(
                self.config, self.stream.epochs_done / self.config.epochs * self.planned_steps, self.planned_steps
            )
        return learning_rate(self.config, step, self.planned_steps)

    def _write_settings(self, lr: float) -> None:
        c = self.config
        values = (lr, c.beta1, c.beta2, c.eps, c.weight_decay, c.clip, 1 - c.beta1, 1 - c.beta2)
        assert len(values) == len(OPTIMIZER_SETTINGS)
        self.model.backend.write(self.state.settings, np.array(values, np.float32))
        if self.state.b_start is not None:
            values = (lr * c.lora_plus_ratio, *values[1:])
            self.model.backend.write(self.state.settings_b, np.array(values, np.float32))

    def _write_dropout(self, number: int) -> None:
        state = self.state.dropout_state
        if self.adapter.config.dropout and state is not None:
            self.model.backend.write(state, np.array([self.config.seed, number], np.uint32))

    def _write_noise(self, number: int, batch: Batch) -> None:
        """NEFTune's noise for a micro-batch: it follows from the seed and the micro-batch's number."""
        if self.state.noise is not None:
            noise = neftune_noise(batch, self.state.noise.shape, self.config.neftune_alpha, self.config.seed, number)
            self.model.backend.write(self.state.noise, noise)

    # -- what it tells ------------------------------------------------------------------------------------------------
    def _tell(self, call: Callable[[Callback], None]) -> None:
        for callback in self.callbacks:
            call(callback)

    def _start_event(self) -> RunStart:
        self._told = self.plan.dataset.notes()
        return RunStart(
            device=self.model.backend.description,
            num_examples=self.plan.dataset.rows_per_epoch,
            total_steps=self.total_steps,
            trainable_parameters=self.adapter.num_parameters,
            first_example="\n".join(
                show_example(sequence, self.model.tokenizer, "⟦{}⟧".format)
                for sequence in self.plan.dataset.first().sequences
            ),
            notes=[*self.plan.notes, *self._told],
            num_eval_examples=len(self.plan.held_out),
            resumed_step=self.progress.step,
        )

    @contextlib.contextmanager
    def _paused(self) -> Generator[None]:
        """What happens inside does not count as time of training."""
        self.model.backend.synchronize()
        begun, since = time.perf_counter(), self._window_since
        yield
        self._window_since = since + time.perf_counter() - begun  # also of what is paused inside, once

    def _log(self) -> None:
        totals, state = self.state.read_totals()
        now, progress = time.perf_counter(), self.progress
        in_a_row = int(state["skipped_in_a_row"])
        if in_a_row >= MAX_SKIPPED:
            raise TrainingError(
                f"step {progress.step}: the gradients of {in_a_row} steps in a row were not finite; "
                "the last saved adapter is kept (try a lower lr, or look for broken rows)"
            )
        log = StepLog(
            step=progress.step,
            total_steps=self.total_steps,
            epoch=round(self.stream.epochs_done, 4),
            loss=totals["log_loss"] / totals["log_tokens"] if totals["log_tokens"] else math.nan,
            lr=progress.lr,
            grad_norm=state["grad_norm"],
            tokens=int(totals["log_tokens"]),
            rows=progress.window_rows,
            seconds=round(progress.seconds + now - self._begun, 3),
            tokens_per_second=round(progress.window_rows / max(now - self._window_since, 1e-9), 1),
            skipped_steps=int(state["skipped"]),
            metrics=self.objective.take_metrics(),
        )
        progress.logged, progress.window_rows, self._window_since = progress.step, 0, now
        self._tell(lambda callback: callback.on_log(log))

    def _evaluate(self, held_out: HeldOut) -> None:
        progress, step = self.progress, self.progress.step
        with self._paused():
            begun = time.perf_counter()
            loss, tokens = held_out.loss(self.objective, self.interrupts.check)
            seconds = round(time.perf_counter() - begun, 3)
            # What the model said before it was trained is told, but cannot be the best adapter of the run.
            best = step > 0 and loss < progress.best_loss
            if best:
                progress.best_loss, progress.best_step, progress.worse = loss, step, 0
                self.best = self._parameters().copy()
            elif step:
                progress.worse += 1
            progress.evaluated = step
            metrics = self.objective.take_metrics(held_out=True)
            perplexity = math.nan if metrics else math.exp(loss) if loss < 700 else math.inf
            log = EvalLog(step, loss, perplexity, tokens, seconds, best, metrics)
            self._tell(lambda callback: callback.on_eval(log))
            self._sample()
            if best:
                self._checkpoint()

    def _sample(self) -> None:
        if not self.config.sample_prompts:
            return
        self.adapter.parameters[:] = self._parameters()
        for prompt in self.config.sample_prompts:
            text = self.model.generate(prompt, self.adapter, max_tokens=self.config.sample_tokens)
            sample = SampleLog(self.progress.step, prompt, text)
            self._tell(lambda callback, sample=sample: callback.on_sample(sample))

    # -- what it keeps ------------------------------------------------------------------------------------------------
    def _parameters(self) -> Floats:
        parameters = self.pool.read()
        if not np.isfinite(parameters).all():
            raise TrainingError(
                f"step {self.progress.step}: the adapter holds numbers that are not finite; the last saved adapter is "
                "kept (try a lower lr)"
            )
        return parameters

    def _checkpoint(self) -> None:
        progress = self.progress
        if self.output is None or self._saved == progress.step:
            return
        with self._paused():
            self.adapter.parameters[:] = self._parameters()
            now = time.perf_counter()
            progress.seconds, self._begun = progress.seconds + now - self._begun, now
            path = save_checkpoint(self.output, self.adapter, progress, self.plan.settings, self.state.snapshot())
            self._saved = progress.step
            prune(self.output, self.config.keep, progress.best_step)
        self._tell(lambda callback: callback.on_save(path, progress.step))

    def _finish(self) -> None:
        """The last checkpoint; then the adapter of the run: the best one, or without held-out rows the last."""
        self._checkpoint()
        self.adapter.parameters[:] = self._parameters() if self.best is None else self.best
        if self.output is not None:
            self.adapter.save(self.output)
            step = self.progress.step if self.best is None else self.progress.best_step
            output = self.output
            self._tell(lambda callback: callback.on_save(output, step))
