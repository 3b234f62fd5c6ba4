"""InferenceState: the buffers and programs of a forward with a cache. It holds no backward buffer.

A batch of pieces (prompt chunks, single tokens, or both, of any sequences and adapters) is one call of ``forward``; its
last rows can be turned into logits or tokens in the same submit. Programs are made per bucket of rows, on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import SAMPLE_SETTINGS, SAMPLE_STATE, Backend, Buffer, Program
from tritune.models.batch import Piece, RowBuffers
from tritune.models.bitnet import BitNet
from tritune.models.block_buffers import Adapters, BlockBuffers, QuantBuffers, first_rows
from tritune.models.cache import BLOCK_SIZE, KVCache
from tritune.models.loss_head import LossHead

HEAD_ROWS = 64
"""Rows that are turned into logits at a time when all are wanted."""


@dataclass(frozen=True)
class Drawn:
    """What sampling returned for each sequence."""

    tokens: NDArray[np.int32]  # [S]
    logprobs: NDArray[np.float32]  # [S]


@dataclass(frozen=True)
class Scores:
    """Of the rows that have a target, in order."""

    nll: NDArray[np.float32]  # -log p(target)
    likeliest: NDArray[np.int32] | None  # the token that greedy decoding would take; None: not asked for


@dataclass(frozen=True)
class _Following:
    """What the row buffers hold after ``next_rows``: one row a sequence."""

    rows: list[tuple[int, int, float]]  # the next position, slot and multiplier of each sequence
    blocks: list[tuple[int, ...]]


def bucket_of(count: int, limit: int) -> int:
    """The rows of the program that serves ``count`` rows: the next power of two, at most the limit."""
    size = 1
    while size < count:
        size *= 2
    return min(size, limit)


class InferenceState:
    """Scratch buffers and programs for batches of at most ``max_rows`` rows of ``max_sequences`` sequences."""

    def __init__(
        self,
        model: BitNet,
        cache: KVCache,
        *,
        max_rows: int = 512,
        max_sequences: int = 1,
        adapters: Adapters | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.adapters = adapters
        self.max_rows = max_rows
        self.max_sequences = max_sequences
        backend, config = model.backend, model.config
        max_blocks = min(cache.num_blocks, -(-config.max_positions // BLOCK_SIZE))
        self.rows = RowBuffers(backend, max_rows, max_sequences, max_blocks)
        rank = None if adapters is None else adapters.rank
        self._buffers = BlockBuffers.make(backend, config, max_rows, rank, floats=model.floats, training=False)
        self._quant = QuantBuffers.make(backend, config, max_rows)
        self._x = backend.empty((max_rows, config.hidden_size))
        self._head = HeadBuffers(backend, model, max_sequences)
        self._all_rows: HeadBuffers | None = None
        self._score_heads: dict[bool, LossHead] = {}
        self._forward_programs: dict[int, Program] = {}
        self._sample_programs: dict[bool, Program] = {}
        self._next_programs: dict[int, Program] = {}
        self._following: _Following | None = None

    @property
    def backend(self) -> Backend:
        """The device."""
        return self.model.backend

    # -- what callers do ----------------------------------------------------------------------------------------------
    def forward(self, pieces: Sequence[Piece]) -> None:
        """Run the rows of the pieces and fill the cache, one submit; nothing is read back."""
        self.backend.submit([self._prepare(pieces)])

    def set_sampling(
        self,
        settings: NDArray[np.float32],
        state: NDArray[np.uint32],
        seen: NDArray[np.uint32],
        allowed: NDArray[np.uint32] | None = None,
    ) -> None:
        """Settings [S, 4] (SAMPLE_SETTINGS), state [S, 4] (SAMPLE_STATE), seen and allowed sets [S, ceil(V / 32)] of
        each sequence."""
        self._head.write_sampling(settings, state, seen, allowed)

    def forward_and_sample(self, pieces: Sequence[Piece], *, limited: bool = False) -> Drawn:
        """Run the pieces and draw the token after the last row of each, in one submit.

        limited: draw only from the allowed sets of ``set_sampling``.
        """
        self.submit_and_sample(pieces, limited=limited)
        return self.drawn(len(pieces), limited=limited)

    def submit_and_sample(self, pieces: Sequence[Piece], *, limited: bool = False) -> None:
        """The same without waiting: ``drawn`` gets the tokens."""
        self.backend.submit([self._prepare(pieces), self._sample_program(limited)])

    def feed_drawn(self, pieces: Sequence[Piece], *, limited: bool = False) -> None:
        """Run one more row of each sequence of the last call, on the token that was drawn for it there, and draw the
        next one: one submit, nothing is waited for, and the host need not know the token.

        pieces: the sequences in the same order, each with one row (whose token is not looked at) at its position.
        """
        size = bucket_of(len(pieces), self.max_rows)
        rows = [(piece.start, piece.slot, piece.multiplier) for piece in pieces]
        blocks = [tuple(piece.blocks) for piece in pieces]
        held, self._following = self._following, None  # until it is submitted, nobody knows what the device holds
        if held is None or held.rows != rows:
            self.rows.write([replace(piece, start=piece.start - 1) for piece in pieces], size)
            self._head.write_index(np.arange(len(pieces), dtype=np.int32))
        elif held.blocks != blocks:
            self.rows.write_tables(pieces)
        programs = [self._next_program(size), self._forward_program(size), self._sample_program(limited)]
        self.backend.submit(programs)
        self._following = _Following([(start + 1, slot, multiplier) for start, slot, multiplier in rows], blocks)

    def drawn(self, count: int, *, previous: bool = False, limited: bool = False) -> Drawn:
        """The tokens of ``count`` sequences that the last call drew, or (previous) the one before it; waits for them.

        Only an asynchronous backend keeps previous ones, and only of two calls with the same ``limited``.
        """
        sampling = self._sample_program(limited)
        result = sampling.previous_result if previous else sampling.result
        tokens, logprobs = (result(buffer) for buffer in (self._head.token, self._head.logprob))
        return Drawn(tokens[:count].astype(np.int32), logprobs[:count].astype(np.float32))

    def logits(self, pieces: Sequence[Piece]) -> NDArray[np.float32]:
        """Run the pieces and return the logits [T, V] of all their rows."""
        self.forward(pieces)
        if self._all_rows is None:
            self._all_rows = HeadBuffers(self.backend, self.model, min(HEAD_ROWS, self.max_rows))
            self._all_rows.record(self._x)
        head = self._all_rows
        count = sum(len(piece.tokens) for piece in pieces)
        chunks: list[NDArray[np.float32]] = []
        for start in range(0, count, head.size):
            used = min(head.size, count - start)
            chunks.append(head.run(np.arange(start, start + used, dtype=np.int32))[:used])
        return np.concatenate(chunks)

    def score(self, pieces: Sequence[Piece], targets: NDArray[np.int32], *, likeliest: bool = False) -> Scores:
        """Run the pieces and return how likely the targets [rows] are (-1: none), in one submit; logits never exist
        for all rows.

        likeliest: also the likeliest token of each row that has a target.
        """
        count = int(np.count_nonzero(targets >= 0))
        if not count:
            self.forward(pieces)
            return Scores(np.empty(0, np.float32), np.empty(0, np.int32) if likeliest else None)
        if likeliest not in self._score_heads:
            self._score_heads[likeliest] = LossHead(self.model, self.max_rows, likeliest)
        head = self._score_heads[likeliest]
        scoring = head.prepare(targets, self._x, None, None, backward=False)
        self.backend.submit([self._prepare(pieces), scoring])
        return Scores(*head.scores(count))

    def prepare(self, rows: int, *, limited: bool | None = False) -> None:
        """Make the programs for batches of ``rows`` rows now, so that no device object is made later (limited None:
        no sampling)."""
        self._forward_program(bucket_of(rows, self.max_rows))
        if limited is not None:
            self._sample_program(limited)
            self._next_program(bucket_of(min(rows, self.max_sequences), self.max_rows))

    # -- programs -----------------------------------------------------------------------------------------------------
    def _prepare(self, pieces: Sequence[Piece]) -> Program:
        counts = [len(piece.tokens) for piece in pieces]
        total = sum(counts)
        if total > self.max_rows or len(pieces) > self.max_sequences:
            raise ValueError(
                f"{total} rows of {len(pieces)} sequences; at most {self.max_rows} of {self.max_sequences}"
            )
        size = bucket_of(total, self.max_rows)
        self._following = None
        self.rows.write(pieces, size)
        self._head.write_index(np.cumsum(counts, dtype=np.int32) - 1)
        return self._forward_program(size)

    def _forward_program(self, size: int) -> Program:
        if size not in self._forward_programs:
            with self.backend.record() as program:
                self._record_forward(size)
            self._forward_programs[size] = program
        return self._forward_programs[size]

    def _record_forward(self, size: int) -> None:
        model, backend = self.model, self.backend
        rows, x = self.rows.bucket(size), first_rows(self._x, size)
        buffers = self._buffers.bucket(size)

        def attend(layer: int, block: BlockBuffers) -> None:
            k, v = self.cache.k[layer], self.cache.v[layer]
            assert block.q is not None
            backend.rope_cache(block.qkv, model.rope, rows, block.q, k, v, *model.heads)
            backend.paged_attention(block.q, k, v, rows, block.o, *model.heads)

        backend.embed(rows.tokens, model.embedding, x)
        for index in range(model.config.num_layers):
            model.block(index, rows, x, x, x, buffers, self._quant, self.adapters, attend)

    def _next_program(self, size: int) -> Program:
        if size not in self._next_programs:
            with self.backend.record() as program:
                self.backend.next_rows(self._head.token, self.rows.bucket(size))
            self._next_programs[size] = program
        return self._next_programs[size]

    def _sample_program(self, limited: bool) -> Program:
        if limited not in self._sample_programs:
            with self.backend.record() as program:
                self._head.record_sample(self._x, program, limited)
            self._sample_programs[limited] = program
        return self._sample_programs[limited]


class HeadBuffers:
    """Final norm, logits and sampling of a few rows."""

    def __init__(self, backend: Backend, model: BitNet, size: int) -> None:
        hidden, vocabulary = model.config.hidden_size, model.config.vocab_size
        words = -(-vocabulary // 32)
        self.backend = backend
        self.model = model
        self.size = size
        self.index = backend.empty((size,), "i32")
        self._gathered = backend.empty((size, hidden))
        self._normed = backend.empty((size, hidden))
        self._logits = backend.empty((size, vocabulary))
        self._settings = backend.empty((size, len(SAMPLE_SETTINGS)))
        self._state = backend.empty((size, len(SAMPLE_STATE)), "u32")
        self._seen = backend.empty((size, words), "u32")
        self._allowed = backend.empty((size, words), "u32")
        self.token, self.logprob = backend.empty_together(((size,), "i32"), ((size,), "f32"))
        self._program: Program | None = None

    def write_index(self, rows: NDArray[np.int32]) -> None:
        """Which rows of the batch to take; the others of this set are spare."""
        index = np.full(self.size, -1, np.int32)
        index[: len(rows)] = rows
        self.backend.write(self.index, index)

    def write_sampling(
        self,
        settings: NDArray[np.float32],
        state: NDArray[np.uint32],
        seen: NDArray[np.uint32],
        allowed: NDArray[np.uint32] | None,
    ) -> None:
        """Fill the buffers that sampling reads."""
        self.backend.write(self._settings, settings)
        self.backend.write(self._state, state)
        self.backend.write(self._seen, seen)
        if allowed is not None:
            self.backend.write(self._allowed, allowed)

    def _record_normed(self, x: Buffer) -> None:
        """The chosen rows of x f32 [T, D], after the final norm."""
        model = self.model
        self.backend.gather_rows(x, self.index, self._gathered)
        self.backend.rms_norm_quant(
            self._gathered, model.final_norm, model.config.rms_norm_eps, self._normed, None, None
        )

    def record_sample(self, x: Buffer, program: Program, limited: bool) -> None:
        """Logits of the chosen rows of x f32 [T, D], then a token for each."""
        self._record_normed(x)
        backend, allowed = self.backend, self._allowed if limited else None
        how = (self._settings, self._state, self._seen, allowed)
        backend.sampling_logits(self._normed, self.model.head, self._logits, *how)
        backend.sample(self._logits, *how, self.token, self.logprob)
        program.fetch(self.token)
        program.fetch(self.logprob)

    def record(self, x: Buffer) -> None:
        """A program that returns the logits of the chosen rows."""
        with self.backend.record() as program:
            self._record_normed(x)
            self.backend.logits(self._normed, self.model.head, self._logits)
            program.fetch(self._logits)
        self._program = program

    def run(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Logits [size, V] of the given rows."""
        assert self._program is not None
        self.write_index(rows)
        self._program.run()
        return self._program.result(self._logits).astype(np.float32, copy=False)
