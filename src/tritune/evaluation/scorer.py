"""Scorer: how likely a model finds the marked tokens of sequences, under the base and under adapters.

Sequences go through the model packed into batches of rows, over a paged cache: a sequence longer than a batch goes on
in the next one, and one that begins like its predecessor (the choices of a question) shares its first blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tritune.data import Example
from tritune.errors import ContextLengthError
from tritune.lora import Adapter, AdapterPool
from tritune.model import Model
from tritune.models.batch import Piece
from tritune.models.cache import BLOCK_SIZE, CachedSequence, KVCache
from tritune.models.inference import InferenceState

MAX_ROWS = 512
"""Rows that go through the model at once."""

MAX_SEQUENCES = 64
"""Sequences that may have rows in one batch."""

Progress = Callable[[int], None]
"""Called with the number of tokens that were dealt with since the last call."""


@dataclass(frozen=True)
class Score:
    """Of the marked tokens of one sequence, in order."""

    nll: NDArray[np.float32]
    """-log p(token | the tokens before it), in nats"""
    greedy: NDArray[np.bool_] | None
    """Whether greedy decoding would say this token; None: not asked for"""

    @property
    def log_likelihood(self) -> float:
        """Log-probability of all marked tokens together."""
        return -float(self.nll.sum(dtype=np.float64))


@dataclass
class _Open:
    """A sequence on its way through the batches."""

    tokens: list[int]  # the rows that go through the model: up to the last one that a marked token follows
    targets: NDArray[np.int32]  # [rows] the marked token that follows, else -1
    cached: CachedSequence
    length: int  # of the whole sequence, for the progress
    next_row: int = 0
    nll: list[NDArray[np.float32]] = field(default_factory=list[NDArray[np.float32]])
    likeliest: list[NDArray[np.int32]] = field(default_factory=list[NDArray[np.int32]])

    @property
    def first_target(self) -> int:
        return int(np.argmax(self.targets >= 0))

    def score(self, likeliest: bool) -> Score:
        goals = self.targets[self.targets >= 0]
        greedy = np.concatenate([*self.likeliest, np.empty(0, np.int32)]) == goals if likeliest else None
        return Score(np.concatenate([*self.nll, np.empty(0, np.float32)]), greedy)


@dataclass
class _Batch:
    """The next rows of some sequences."""

    parts: list[tuple[_Open, int, int]] = field(default_factory=list[tuple[_Open, int, int]])  # rows from … to …
    rows: int = 0


class Scorer:
    """Scores sequences of at most ``max_length`` tokens. adapters: None stands for the base."""

    def __init__(
        self,
        model: Model,
        adapters: Sequence[Adapter | None] = (None,),
        *,
        max_length: int | None = None,
        likeliest: bool = False,
    ) -> None:
        """likeliest: also find out what greedy decoding would say. Raises AdapterError."""
        self.model = model
        self.adapters = list(adapters)
        self.max_length = min(max_length or model.context_length, model.context_length)
        self._likeliest = likeliest
        used = [adapter for adapter in self.adapters if adapter is not None]
        for adapter in used:
            adapter.check_fits(model.config)
        pool = AdapterPool.for_adapters(model.backend, used) if used else None
        self._slots = [0 if adapter is None else 1 + used.index(adapter) for adapter in self.adapters]
        # The sequence that goes on, the one whose beginning it shares, and a batch of short ones.
        blocks = 2 * -(-self.max_length // BLOCK_SIZE) + MAX_ROWS // BLOCK_SIZE + MAX_SEQUENCES
        self._state = InferenceState(
            model.device_model,
            KVCache(model.backend, model.config, blocks, model.kv_dtype),
            max_rows=MAX_ROWS,
            max_sequences=MAX_SEQUENCES,
            adapters=pool,
        )

    def score(self, examples: Iterable[Example], adapter: int = 0, progress: Progress | None = None) -> Iterator[Score]:
        """The scores of the examples, in order, under the adapter of this number; the marked tokens are those that
        are ``trained`` in an example (a first token never counts: nothing is before it).

        Raises ContextLengthError for an example longer than max_length.
        """
        slot = self._slots[adapter]
        batch, waiting = _Batch(), list[_Open]()
        previous: _Open | None = None
        try:
            for example in examples:
                previous = self._open(example, previous)
                waiting.append(previous)
                while previous.next_row < len(previous.tokens):
                    if batch.rows == MAX_ROWS or len(batch.parts) == MAX_SEQUENCES:
                        self._run(batch, slot)
                        batch = _Batch()
                        while len(waiting) > 1:
                            yield self._close(waiting.pop(0), progress)
                    self._add_rows(batch, previous)
            if batch.rows:
                self._run(batch, slot)
            while waiting:
                yield self._close(waiting.pop(0), progress)
        finally:
            for request in waiting:
                request.cached.truncate(0)

    def _open(self, example: Example, previous: _Open | None) -> _Open:
        if len(example) > self.max_length:
            raise ContextLengthError(f"a sequence of {len(example)} tokens; at most {self.max_length} can be scored")
        targets = np.where(example.trained[1:], example.tokens[1:], -1).astype(np.int32)
        used = int(np.flatnonzero(targets >= 0)[-1]) + 1 if (targets >= 0).any() else 0
        tokens: list[int] = example.tokens[:used].tolist()
        request = _Open(tokens, targets[:used], CachedSequence(self._state.cache), len(example))
        if previous is not None and used:
            shared = min(previous.cached.common_prefix(tokens), request.first_target)
            request.cached.share(previous.cached, shared // BLOCK_SIZE * BLOCK_SIZE)
            request.next_row = len(request.cached.tokens)
        return request

    def _add_rows(self, batch: _Batch, request: _Open) -> None:
        start = request.next_row
        stop = min(len(request.tokens), start + MAX_ROWS - batch.rows)
        request.cached.extend(request.tokens[start:stop])
        request.next_row = stop
        batch.parts.append((request, start, stop))
        batch.rows += stop - start

    def _run(self, batch: _Batch, slot: int) -> None:
        pieces = [
            Piece(request.tokens[start:stop], start, slot, blocks=tuple(request.cached.blocks))
            for request, start, stop in batch.parts
        ]
        targets = [request.targets[start:stop] for request, start, stop in batch.parts]
        found = self._state.score(pieces, np.concatenate(targets), likeliest=self._likeliest)
        at = 0
        for (request, _, _), goals in zip(batch.parts, targets, strict=True):
            count = int(np.count_nonzero(goals >= 0))
            request.nll.append(found.nll[at : at + count])
            if found.likeliest is not None:
                request.likeliest.append(found.likeliest[at : at + count])
            at += count

    def _close(self, request: _Open, progress: Progress | None) -> Score:
        request.cached.truncate(0)
        if progress is not None:
            progress(request.length)
        return request.score(self._likeliest)
