"""LossHead: from hidden states to losses, their gradient, and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import SAMPLE_SETTINGS, SAMPLE_STATE, Backend, Buffer, Program
from tritune.models.bitnet import BitNet
from tritune.models.block_buffers import first_rows
from tritune.models.config import ModelConfig

HEAD_BYTES = 64 << 20
"""Most memory that the logits of a chunk of rows may take."""


class LossHead:
    """Final norm, logits, loss and their gradient, of the trained rows only, in chunks: logits never exist for all
    rows."""

    def __init__(self, model: BitNet, max_rows: int, likeliest: bool = False) -> None:
        """likeliest: programs without a gradient also find the likeliest token of each row."""
        backend, config = model.backend, model.config
        self.model = model
        self.sizes = _head_sizes(max_rows)
        size = self.sizes[-1]
        self.chunk = min(size, _chunk_rows(config.vocab_size))
        self.index = backend.empty((size,), "i32")
        self.targets = backend.empty((size,), "i32")
        self.coefficients = backend.empty((size,))
        self.nll = backend.empty((size,))
        self._gathered = backend.empty((size, config.hidden_size))
        self._normed = backend.empty((size, config.hidden_size))
        self._logits = backend.empty((self.chunk, config.vocab_size))
        self._greedy = GreedyBuffers.make(backend, self.chunk, size, config.vocab_size) if likeliest else None
        self._programs: dict[tuple[int, bool, bool], Program] = {}
        self._scoring: Program | None = None

    def prepare(
        self,
        targets: NDArray[np.int32],
        hidden: Buffer,
        totals: Buffer | None,
        dhidden: Buffer | None,
        backward: bool,
        coefficients: NDArray[np.float32] | None = None,
    ) -> Program:
        """Write a batch's targets (-1 = not trained) and return the program for their number.

        totals None: the losses are not added up. dhidden is not needed without backward. coefficients [trained rows]:
        the loss is their sum of products with the nll; None: all are 1.
        """
        trained = np.flatnonzero(targets >= 0).astype(np.int32)
        size = self._size_of(len(trained))
        index, goal = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
        index[: len(trained)], goal[: len(trained)] = trained, targets[trained]
        backend = self.model.backend
        backend.write(self.index.view(0, (size,)), index)
        backend.write(self.targets.view(0, (size,)), goal)
        weights = (goal >= 0).astype(np.float32)
        if coefficients is not None:
            weights[: len(trained)] = coefficients
        backend.write(self.coefficients.view(0, (size,)), weights)
        program = self._program(size, hidden, totals, dhidden, backward)
        if not backward:
            self._scoring = program
        return program

    def _size_of(self, count: int) -> int:
        return next(size for size in self.sizes if size >= count)

    def prepare_all(self, hidden: Buffer, totals: Buffer, dhidden: Buffer, evaluation: bool) -> None:
        """Make the training programs of all sizes, and those without a gradient."""
        for size in self.sizes:
            for backward in (True, False) if evaluation else (True,):
                self._program(size, hidden, totals, dhidden, backward)

    def prepare_scoring(self, hidden: Buffer, dhidden: Buffer) -> None:
        """Make the programs of all sizes that score, and those of a gradient from coefficients, without totals."""
        for size in self.sizes:
            for backward in (True, False):
                self._program(size, hidden, None, dhidden, backward)

    def _program(
        self, size: int, hidden: Buffer, totals: Buffer | None, dhidden: Buffer | None, backward: bool
    ) -> Program:
        key = (size, backward, totals is not None)
        if key not in self._programs:
            with self.model.backend.record() as program:
                self._record(size, hidden, totals, dhidden, backward)
                if not backward:
                    for buffer in self._results(size):
                        program.fetch(buffer)
            self._programs[key] = program
        return self._programs[key]

    def _results(self, size: int) -> list[Buffer]:
        found = [self.nll] if self._greedy is None else [self.nll, self._greedy.token]
        return [buffer.view(0, (size,)) for buffer in found]

    def scores(self, count: int) -> tuple[NDArray[np.float32], NDArray[np.int32] | None]:
        """(nll [count], likeliest token [count] or None) of the trained rows of the last batch, which had ``count`` of
        them and no gradient. Waits."""
        assert self._scoring is not None
        nll, *token = (self._scoring.result(buffer)[:count] for buffer in self._results(self._size_of(count)))
        return nll.astype(np.float32), token[0].astype(np.int32) if token else None

    def _record(self, size: int, hidden: Buffer, totals: Buffer | None, dhidden: Buffer | None, backward: bool) -> None:
        model, backend = self.model, self.model.backend
        eps, width = model.config.rms_norm_eps, model.config.hidden_size
        index = self.index.view(0, (size,))
        gathered, normed = (b.view(0, (size, width)) for b in (self._gathered, self._normed))
        backend.gather_rows(hidden, index, gathered)
        backend.rms_norm_quant(gathered, model.final_norm, eps, normed, None, None)
        for start in range(0, size, self.chunk):
            rows = min(self.chunk, size - start)
            logits = self._logits.view(0, (rows, model.config.vocab_size))
            part = normed.view(start * width, (rows, width))
            targets, coefficients, nll = (b.view(start, (rows,)) for b in (self.targets, self.coefficients, self.nll))
            backend.logits(part, model.head, logits)
            if self._greedy is not None and not backward:
                self._greedy.record(backend, logits, start, rows)
            backend.cross_entropy(logits, targets, coefficients, nll, backward)
            if backward:
                backend.logits_backward(logits, model.head, part)
        if totals is not None:
            backend.add_loss(self.nll.view(0, (size,)), self.coefficients.view(0, (size,)), totals)
        if backward:
            assert dhidden is not None
            backend.rms_norm_backward(gathered, model.final_norm, eps, normed, normed)
            backend.scatter_rows(normed, index, dhidden)


def head_bytes(config: ModelConfig, max_rows: int) -> int:
    """Bytes of a LossHead's buffers."""
    size = _head_sizes(max_rows)[-1]
    return size * (16 + 8 * config.hidden_size) + 4 * min(size, _chunk_rows(config.vocab_size)) * config.vocab_size


@dataclass(frozen=True)
class GreedyBuffers:
    """What the op ``sample`` needs to find the likeliest token of each row of a chunk of logits."""

    settings: Buffer  # f32 [chunk, 4]: temperature 0
    state: Buffer  # u32 [chunk, 4]
    seen: Buffer  # u32 [chunk, ceil(V / 32)], of no effect
    logprob: Buffer  # f32 [chunk], not read
    token: Buffer  # i32 [rows], of all chunks

    @classmethod
    def make(cls, backend: Backend, chunk: int, rows: int, vocab_size: int) -> GreedyBuffers:
        """Buffers for ``rows`` rows, ``chunk`` at a time."""
        plain = dict.fromkeys(SAMPLE_SETTINGS, 0.0) | {"top_p": 1.0, "repetition_penalty": 1.0}
        return cls(
            settings=backend.upload(np.tile(np.array(list(plain.values()), np.float32), (chunk, 1))),
            state=backend.empty((chunk, len(SAMPLE_STATE)), "u32"),
            seen=backend.empty((chunk, -(-vocab_size // 32)), "u32"),
            logprob=backend.empty((chunk,)),
            token=backend.empty((rows,), "i32"),
        )

    def record(self, backend: Backend, logits: Buffer, start: int, rows: int) -> None:
        """The likeliest token of each row of logits f32 [rows, V], into the tokens from ``start`` on."""
        settings, state, seen, logprob = (
            first_rows(buffer, rows) for buffer in (self.settings, self.state, self.seen, self.logprob)
        )
        backend.sample(logits, settings, state, seen, None, self.token.view(start, (rows,)), logprob)


def _chunk_rows(vocab_size: int) -> int:
    """Rows of a chunk: as many as HEAD_BYTES allow, a power of two of at least 64 (views start at multiples of 64)."""
    rows = 64
    while rows < 1024 and 2 * rows * vocab_size * 4 <= HEAD_BYTES:
        rows *= 2
    return rows


def _head_sizes(max_rows: int) -> list[int]:
    """Numbers of head rows that have a program: an eighth, a quarter, a half, and all, in multiples of 64."""
    rounded = sorted({max(64, -(-max_rows // (part * 64)) * 64) for part in (8, 4, 2, 1)})
    return rounded if max_rows > 64 else [max_rows]
