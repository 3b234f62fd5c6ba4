"""Packing: examples, shuffled by (seed, epoch), into micro-batches of sequences one after another, without padding.

Sequences of a batch are isolated: positions restart, ``q_start`` bounds them, and no target crosses a boundary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritune.data.examples import Item
from tritune.errors import ConfigError

OPEN_BINS = 32  # batches that are filled side by side; more waste less room, and mix the order of the shuffle more


@dataclass(frozen=True)
class Batch:
    """T rows of S sequences, packed."""

    tokens: NDArray[np.int32]
    """int32 [T]"""
    targets: NDArray[np.int32]
    """int32 [T]: the id of the sequence's next token where that one is trained, else -1"""
    positions: NDArray[np.int32]
    """int32 [T]: from 0 in each sequence"""
    sequence: NDArray[np.int32]
    """int32 [T]: the sequence of a row"""
    q_start: NDArray[np.int32]
    """int32 [S+1]: where each sequence begins, and T"""

    @property
    def num_targets(self) -> int:
        """Number of trained tokens."""
        return int(np.count_nonzero(self.targets >= 0))


@dataclass(frozen=True)
class BatchPosition:
    """Where a run stands: ``batch`` batches of ``epoch`` were taken."""

    epoch: int = 0
    batch: int = 0


def pack(items: Sequence[Item]) -> Batch:
    """One batch of examples, or of pairs (chosen, then rejected), in order."""
    examples = [example for item in items for example in item.sequences]
    lengths = np.array([len(example) for example in examples], np.int32)
    q_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = np.concatenate([example.tokens for example in examples]).astype(np.int32)
    trained = np.concatenate([example.trained for example in examples]).astype(np.bool_)
    trained[q_start[:-1]] = False  # a sequence's first token would be the target of another one's last
    targets = np.full(len(tokens), -1, np.int32)
    targets[:-1] = np.where(trained[1:], tokens[1:], -1)
    sequence = np.repeat(np.arange(len(examples), dtype=np.int32), lengths)
    positions = np.arange(len(tokens), dtype=np.int32) - q_start[sequence]
    return Batch(tokens, targets, positions, sequence, q_start)


def plan_epoch(lengths: Sequence[int], max_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Indices of the examples of each micro-batch of an epoch: each example once, ``max_tokens`` tokens at most.

    First fit over a few open batches, in the shuffled order: depends on (lengths, max_tokens, seed, epoch) alone.
    """
    order: list[int] = np.random.default_rng([seed, epoch]).permutation(len(lengths)).tolist()
    closed: list[list[int]] = []
    bins: list[list[int]] = []
    room: list[int] = []
    for index in order:
        length = lengths[index]
        place = next((i for i, free in enumerate(room) if free >= length), None)
        if place is None:
            if len(bins) == OPEN_BINS:
                closed.append(bins.pop(0))
                room.pop(0)
            bins.append([])
            room.append(max_tokens)
            place = len(bins) - 1
        bins[place].append(index)
        room[place] -= length
    return closed + bins


class BatchStream:
    """Micro-batches of epoch after epoch without end; ``position`` may be stored, and a stream begun from it."""

    def __init__(
        self, examples: Sequence[Item], max_tokens: int, seed: int, position: BatchPosition | None = None
    ) -> None:
        """Raises ConfigError when there is no example, or one is longer than ``max_tokens``."""
        if not examples:
            raise ConfigError("no examples to make batches of")
        longest = max(len(example) for example in examples)
        if longest > max_tokens:
            raise ConfigError(f"a micro-batch of {max_tokens} tokens cannot hold an example of {longest}")
        self._examples = examples
        self._lengths = [len(example) for example in examples]
        self._max_tokens = max_tokens
        self._seed = seed
        self._position = position or BatchPosition()
        self._plan = self._plan_of(self._position.epoch)
        if not 0 <= self._position.batch <= len(self._plan):
            raise ConfigError(f"epoch {self._position.epoch} has {len(self._plan)} batches, not {self._position.batch}")

    @property
    def position(self) -> BatchPosition:
        """Where the stream stands; a stream made with it goes on with the next batch."""
        return self._position

    def num_batches(self, epoch: int) -> int:
        """Micro-batches of an epoch (the shuffle decides how well they fill)."""
        return len(self._plan if epoch == self._position.epoch else self._plan_of(epoch))

    def epoch(self) -> Iterator[Batch]:
        """The remaining batches of the current epoch; after the last one the stream stands at the next epoch."""
        current = self._position.epoch
        while self._position.epoch == current:
            yield next(self)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._position.batch == len(self._plan):
            self._begin(self._position.epoch + 1)
        batch = pack([self._examples[index] for index in self._plan[self._position.batch]])
        taken = self._position.batch + 1
        if taken == len(self._plan):
            self._begin(self._position.epoch + 1)
        else:
            self._position = BatchPosition(self._position.epoch, taken)
        return batch

    def _begin(self, epoch: int) -> None:
        self._position = BatchPosition(epoch, 0)
        self._plan = self._plan_of(epoch)

    def _plan_of(self, epoch: int) -> list[list[int]]:
        return plan_epoch(self._lengths, self._max_tokens, self._seed, epoch)
