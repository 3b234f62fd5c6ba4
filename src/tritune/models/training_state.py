"""TrainingState: the buffers and programs of a forward and backward over packed sequences.

One micro-batch is one submit: forward, loss, backward, each a program so that the head's can be as short as the
number of
trained rows allows. Gradients and losses are summed, un-normalised, on the device; ``update`` ends an optimizer step.

By default a block's input is saved and its inside computed again in backward; ``recompute=False`` keeps what takes a
product or attention to compute; the normed inputs of the linears are computed again all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import (
    LOSS_TOTALS,
    OPTIMIZER_SETTINGS,
    OPTIMIZER_STATE,
    Backend,
    Buffer,
    Program,
    Rows,
)
from tritune.errors import ConfigError
from tritune.models.backward import BackwardBuffers, block_backward
from tritune.models.batch import Piece, RowBuffers
from tritune.models.bitnet import BitNet
from tritune.models.block_buffers import Adapters, BlockBuffers, QuantBuffers, WithoutDropout
from tritune.models.linears import linear_groups
from tritune.models.loss_head import LossHead


@dataclass(frozen=True)
class MicroBatch:
    """Packed sequences and what is trained in them."""

    pieces: Sequence[Piece]
    targets: NDArray[np.int32]  # [rows]: the token that a row is trained to predict, -1 = none


@dataclass(frozen=True)
class SavedActivations:
    """What backward needs of each layer: its input, and its inside. Layers share what is recomputed: everything but the
    LoRA factor A x of the last linear (which is not run again), or without recomputing the linears' inputs."""

    inputs: list[Buffer]  # f32 [T, D] of layer 0 … L; the last one is the final hidden state
    blocks: list[BlockBuffers]


class TrainingState:
    """Buffers and programs for micro-batches of at most ``max_rows`` rows.

    adapters is a pool of one entry; flat_grad (laid out like it) receives the gradient, ``+=``. Layers below
    start_layer get no gradient.
    """

    def __init__(
        self,
        model: BitNet,
        adapters: Adapters,
        parameters: Buffer,
        *,
        max_rows: int,
        max_sequences: int | None = None,
        start_layer: int = 0,
        recompute: bool = True,
        dropout_state: Buffer | None = None,
        b_start: int | None = None,
        noisy: bool = False,
    ) -> None:
        """dropout_state u32 [2]: (seed, step) of the pool's dropout, to be written before each micro-batch.

        b_start: where B begins in the flat buffers, if it has settings of its own (``settings_b``, for LoRA+).
        noisy: add ``noise`` f32 [max_rows, D], to be written before each micro-batch, to the embeddings that are
        trained on.
        """
        backend, config = model.backend, model.config
        if not 0 <= start_layer < config.num_layers:
            raise ConfigError(f"start_layer {start_layer}: the model has layers 0 … {config.num_layers - 1}")
        self.model = model
        self.adapters = adapters
        self.max_rows = max_rows
        self.start_layer = start_layer
        self.recompute = recompute
        self.dropout_state = dropout_state
        self.rows = RowBuffers(backend, max_rows, max_sequences or max_rows)
        self.parameters = parameters
        self.grads, self.m, self.v = (backend.empty(parameters.shape) for _ in range(3))
        self.totals = backend.empty((len(LOSS_TOTALS),))
        self.settings = backend.empty((len(OPTIMIZER_SETTINGS),))
        self.b_start = b_start
        self.settings_b = self.settings if b_start is None else backend.empty((len(OPTIMIZER_SETTINGS),))
        self.optimizer_state = backend.empty((len(OPTIMIZER_STATE),))
        self._saved = self._make_saved()
        self._quant = QuantBuffers.make(backend, config, max_rows)
        self._back = BackwardBuffers.make(backend, config, max_rows, adapters.rank)
        self._head = LossHead(model, max_rows)
        self.noise = backend.empty((max_rows, config.hidden_size)) if noisy else None
        # x += noise · I: the product with a ternary matrix is the one op that adds a buffer to another.
        identity = np.eye(config.hidden_size, dtype=np.int8) if noisy else None
        self._identity = None if identity is None else backend.pack_ternary([(identity, 1.0)])
        self._forward = self._record_forward(adapters, self.noise)
        self._evaluation: Program | None = None
        self._host_loss: tuple[Buffer, Buffer, Program] | None = None
        self._backward = self._record_backward()
        self._update: Program | None = None

    def _make_saved(self) -> SavedActivations:
        backend, config, rank = self.model.backend, self.model.config, self.adapters.rank
        shape = (self.max_rows, config.hidden_size)

        def block(inputs_of: BlockBuffers | None = None) -> BlockBuffers:
            floats = self.model.floats
            return BlockBuffers.make(
                backend, config, self.max_rows, rank, floats=floats, training=True, inputs_of=inputs_of
            )

        def last_factor() -> dict[str, Buffer]:
            return {"down": backend.empty(first.down["down"].shape)}

        first = block()
        others = range(config.num_layers - 1)
        if self.recompute:
            blocks = [first, *(replace(first, down={**first.down, **last_factor()}) for _ in others)]
        else:
            blocks = [first, *(block(inputs_of=first) for _ in others)]
        return SavedActivations([backend.empty(shape) for _ in range(config.num_layers + 1)], blocks)

    @property
    def backend(self) -> Backend:
        """The device."""
        return self.model.backend

    # -- what callers do ----------------------------------------------------------------------------------------------
    def forward_backward(self, batch: MicroBatch, *, update: bool = False) -> None:
        """Add a micro-batch's gradient, loss and number of trained tokens; one submit, nothing is read back.

        update: end the optimizer step in the same submit (write ``settings`` before).
        """
        head = self._write(batch, backward=True)
        update_programs = [self.update_program()] if update else []
        self.backend.submit([self._forward, head, self._backward, *update_programs])

    def forward_loss(self, batch: MicroBatch) -> None:
        """Add a micro-batch's loss and number of trained tokens, without dropout and without a gradient."""
        head = self._write(batch, backward=False)
        self.backend.submit([self.evaluation_program(), head])

    def score(self, batch: MicroBatch, forward: Program) -> NDArray[np.float32]:
        """-log p of each target of a batch, in order; forward: ``forward_program``, after which ``backward`` may
        follow, or another one. Waits."""
        self.rows.write(batch.pieces, self.max_rows)
        scoring = self._head.prepare(batch.targets, self._saved.inputs[-1], None, None, backward=False)
        self.backend.submit([forward, scoring])
        return self._head.scores(int(np.count_nonzero(batch.targets >= 0)))[0]

    def backward(
        self, batch: MicroBatch, coefficients: NDArray[np.float32], loss: float, count: int, *, update: bool = False
    ) -> None:
        """Add the gradient of Σ coefficients · nll over the targets of the batch that was scored last.

        loss and count: what is added to the totals. update: see ``forward_backward``.
        """
        hidden, dhidden = self._saved.inputs[-1], self._back.dx
        head = self._head.prepare(batch.targets, hidden, None, dhidden, backward=True, coefficients=coefficients)
        update_programs = [self.update_program()] if update else []
        self.backend.submit([head, self._backward, self._write_loss(loss, count), *update_programs])

    def add_loss(self, loss: float, count: int) -> None:
        """Add a loss and a count of the host's to the totals."""
        self.backend.submit([self._write_loss(loss, count)])

    def _write_loss(self, loss: float, count: int) -> Program:
        """The program that adds them; as ``add_loss`` has it: the mean, times its weight."""
        if self._host_loss is None:
            mean, weight = self.backend.empty((1,)), self.backend.empty((1,))
            with self.backend.record() as program:
                self.backend.add_loss(mean, weight, self.totals)
            self._host_loss = (mean, weight, program)
        mean, weight, program = self._host_loss
        self.backend.write(mean, np.array([loss / count], np.float32))
        self.backend.write(weight, np.array([count], np.float32))
        return program

    @property
    def forward_program(self) -> Program:
        """The forward of training, which drops what dropout says."""
        return self._forward

    def reference_program(self, adapters: Adapters | None) -> Program:
        """A forward over the same buffers under other adapters of the same rank (None: the base), which drops
        nothing."""
        return self._record_forward(None if adapters is None else WithoutDropout(adapters))

    def prepare_scoring(self) -> None:
        """Make the programs of ``score`` and ``backward`` now, but for their forwards."""
        self.update_program()
        self._head.prepare_scoring(self._saved.inputs[-1], self._back.dx)

    def _write(self, batch: MicroBatch, backward: bool) -> Program:
        """Describe a batch on the device; the head's program for it."""
        self.rows.write(batch.pieces, self.max_rows)
        return self._head.prepare(batch.targets, self._saved.inputs[-1], self.totals, self._back.dx, backward)

    def evaluation_program(self) -> Program:
        """A forward that drops nothing and adds no noise: the training one where that is so, else one over the same
        buffers."""
        if self._evaluation is None:
            adapters = self.adapters
            drops = any(
                adapters.dropout(layer, group.name) is not None
                for layer in range(self.model.config.num_layers)
                for group in linear_groups(self.model.config)
            )
            plain = not drops and self.noise is None
            self._evaluation = self._forward if plain else self._record_forward(WithoutDropout(adapters))
        return self._evaluation

    def update_program(self) -> Program:
        """Norm, clipping, finite check and AdamW; clears the gradients and the step's totals."""
        if self._update is None:
            with self.backend.record() as program:
                self.backend.global_norm(self.grads, self.totals, self.settings, self.optimizer_state)
                start = 0
                parts = [(self.parameters.size, self.settings)]
                if self.b_start is not None:
                    parts = [(self.b_start, self.settings), (self.parameters.size, self.settings_b)]
                for end, settings in parts:
                    parameters, grads, m, v = (
                        flat.view(start, (end - start,)) for flat in (self.parameters, self.grads, self.m, self.v)
                    )
                    self.backend.adamw(parameters, grads, m, v, settings, self.optimizer_state)
                    start = end
                program.fetch(self.totals)
                program.fetch(self.optimizer_state)
            self._update = program
        return self._update

    def read_totals(self) -> tuple[dict[str, float], dict[str, float]]:
        """(LOSS_TOTALS, OPTIMIZER_STATE) after the last update, by name; the sums for the log begin anew. Waits."""
        program = self.update_program()
        totals, state = (program.result(b).astype(float).tolist() for b in (self.totals, self.optimizer_state))
        self.backend.write(self.totals, np.zeros(self.totals.shape, np.float32))
        return dict(zip(LOSS_TOTALS, totals, strict=True)), dict(zip(OPTIMIZER_STATE, state, strict=True))

    def clear(self) -> None:
        """Forget gradients, losses and everything that the optimizer has remembered."""
        for buffer in (self.grads, self.m, self.v, self.totals, self.optimizer_state):
            self.backend.write(buffer, np.zeros(buffer.shape, np.float32))

    def read_loss(self) -> tuple[float, int]:
        """(loss summed over the trained tokens since the last update, their number), which begin anew. Waits."""
        loss, count = self.backend.read(self.totals)[:2].tolist()
        self.backend.write(self.totals.view(0, (2,)), np.zeros(2, np.float32))
        return float(loss), int(count)

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Copies of what the next step depends on besides the parameters, and of the sums for the log. Waits.

        What was added since the last update is left out.
        """
        arrays = {name: np.array(self.backend.read(buffer), np.float32) for name, buffer in self._kept().items()}
        arrays["totals"][:2] = 0
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Go on from a snapshot. Raises ConfigError for one of another adapter's."""
        self.clear()
        for name, buffer in self._kept().items():
            found = arrays[name].shape if name in arrays else None
            if found != buffer.shape:
                raise ConfigError(f"optimizer state {name}: expected shape {buffer.shape}, found {found}")
            self.backend.write(buffer, arrays[name])

    def _kept(self) -> dict[str, Buffer]:
        return {"m": self.m, "v": self.v, "optimizer_state": self.optimizer_state, "totals": self.totals}

    def prepare(self, evaluation: bool = False) -> None:
        """Make every program now, so that no device object is made in the step loop."""
        self.update_program()
        self._head.prepare_all(self._saved.inputs[-1], self.totals, self._back.dx, evaluation)
        if evaluation:
            self.evaluation_program()

    # -- programs -----------------------------------------------------------------------------------------------------
    def _forward_block(self, index: int, rows: Rows, adapters: Adapters | None, *, again: bool = False) -> None:
        """again: only what backward needs of the inside."""
        model, block = self.model, self._saved.blocks[index]
        x, out = self._saved.inputs[index : index + 2]
        assert block.mid is not None

        def attend(_: int, buffers: BlockBuffers) -> None:
            assert buffers.lse is not None
            self.backend.rope(buffers.qkv, model.rope, rows, *model.heads)
            self.backend.causal_attention(buffers.qkv, rows, buffers.o, buffers.lse, *model.heads)

        model.block(index, rows, x, block.mid, None if again else out, block, self._quant, adapters, attend)

    def _record_forward(self, adapters: Adapters | None, noise: Buffer | None = None) -> Program:
        rows = self.rows.rows
        with self.backend.record() as program:
            x = self._saved.inputs[0]
            self.backend.embed(rows.tokens, self.model.embedding, x)
            if noise is not None and self._identity is not None:
                self.backend.linear(noise, None, None, self._identity, x, rows, accumulate=True)
            for index in range(self.model.config.num_layers):
                self._forward_block(index, rows, adapters)
        return program

    def _record_backward(self) -> Program:
        rows, last = self.rows.rows, self.model.config.num_layers - 1
        with self.backend.record() as program:
            for index in range(last, self.start_layer - 1, -1):
                if self.recompute and index != last:  # the last block's inside is still there
                    self._forward_block(index, rows, self.adapters, again=True)
                block_backward(
                    self.model,
                    index,
                    rows,
                    self._saved.inputs[index],
                    self._saved.blocks[index],
                    self._back,
                    self.adapters,
                    self.grads,
                    first=index == self.start_layer,
                    renorm=not self.recompute,
                )
        return program


def next_token_targets(tokens: Sequence[int], trained: Sequence[bool] | NDArray[np.bool_]) -> NDArray[np.int32]:
    """Targets int32 [T] of one sequence: the next token where that one is trained, else -1.

    Raises ConfigError when the flags do not match the tokens, or none of them can be a target.
    """
    mask = np.asarray(trained, np.bool_)
    if mask.shape != (len(tokens),):
        raise ConfigError(f"trained: expected {len(tokens)} flags, one for each token, found shape {mask.shape}")
    targets = np.full(len(tokens), -1, np.int32)
    targets[:-1] = np.where(mask[1:], np.asarray(tokens[1:], np.int32), -1)
    if not (targets >= 0).any():
        raise ConfigError("trained: no token is a target (the first token of a sequence cannot be one)")
    return targets
