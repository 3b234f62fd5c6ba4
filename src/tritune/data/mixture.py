"""Sources of rows as one, and the order in which an epoch takes them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tritune.data.rows import Row
from tritune.data.source import RowSource
from tritune.data.split import held_out_rows
from tritune.errors import ConfigError, DataError

Order = NDArray[np.uint32]


class RowSet:
    """Rows of one or several sources, by one index.

    Without weights an epoch takes each row once. With weights it takes as many rows as there are, of each source its
    share: of a source with a small share other rows in each epoch until all were taken; those of one with a large share
    several times.
    """

    def __init__(
        self,
        sources: Sequence[RowSource],
        weights: Sequence[float] | None = None,
        named: list[tuple[str, float | None]] | None = None,
    ) -> None:
        """``named``: source and weight as the user wrote them.

        Raises ConfigError for weights that are no shares, DataError when pairs and other rows are mixed.
        """
        self.sources = tuple(sources)
        self.named = named
        self._first = [0, *accumulate(len(source) for source in sources)]
        if len(self) >= 1 << 32:
            raise DataError(f"{self.name}: {len(self)} rows, more than {(1 << 32) - 1}")
        if len({source.is_preference for source in sources}) > 1:
            raise DataError(f"{self.name}: pairs of answers cannot be mixed with rows of other kinds")
        self._weights = weights
        self._counts = [len(source) for source in sources] if weights is None else self._shares(weights)

    def __len__(self) -> int:
        return self._first[-1]

    def __getitem__(self, index: int) -> Row:
        """A row. Raises DataError naming file and line when it cannot be used."""
        number, local = self.find(index)
        return self.sources[number][local]

    def find(self, index: int) -> tuple[int, int]:
        """(number of the source, index in it) of a row."""
        number = bisect_right(self._first, index) - 1
        return number, index - self._first[number]

    @property
    def name(self) -> str:
        """The names of the sources."""
        return ", ".join(source.name for source in self.sources)

    @property
    def rows_per_epoch(self) -> int:
        """How many rows an epoch takes."""
        return sum(self._counts)

    @property
    def repeats(self) -> bool:
        """Whether an epoch takes rows more than once, for their share."""
        return any(count > len(source) for count, source in zip(self._counts, self.sources, strict=True))

    @property
    def is_preference(self) -> bool:
        """Whether the rows are pairs of answers."""
        return self.sources[0].is_preference

    @property
    def digest(self) -> str:
        """Equal for the same rows, of the same sources with the same shares."""
        return " ".join([*(source.digest for source in self.sources), *map(str, self._counts)])

    def hold_out(self, held_out: float, seed: int) -> tuple[RowSet, RowSet]:
        """(rows to train on, held-out rows): which are held out follows from ``seed`` alone; see ``split_rows``.

        Raises ConfigError.
        """
        chosen = np.zeros(len(self), np.bool_)
        chosen[held_out_rows(len(self), held_out, seed)] = True
        train: list[RowSource] = []
        held: list[RowSource] = []
        for source, first in zip(self.sources, self._first, strict=False):
            mine = chosen[first : first + len(source)]
            train.append(source.select(np.flatnonzero(~mine).astype(np.uint32)))
            if mine.any():
                held.append(source.select(np.flatnonzero(mine).astype(np.uint32)))
        return RowSet(train, self._weights), RowSet(held)

    def verify(self) -> None:
        """Raise DataError now when a row cannot be used, as far as all rows of a source can be looked at quickly."""
        for source in self.sources:
            source.verify()

    def order(self, seed: int, epoch: int) -> Order:
        """uint32 [rows_per_epoch]: indices of the rows in the order of an epoch; follows from its arguments alone."""
        parts = [self._drawn(number, epoch * count, count, seed) for number, count in enumerate(self._counts) if count]
        order = np.concatenate(parts)
        np.random.default_rng([seed, epoch]).shuffle(order)
        return order

    def _drawn(self, number: int, start: int, count: int, seed: int) -> Order:
        """Rows ``start`` … ``start + count`` of the source's shuffled rows, shuffled anew when all were taken."""
        size, first = len(self.sources[number]), self._first[number]
        whole = np.arange(first, first + size, dtype=np.uint32)
        if count == size:
            return whole
        parts: list[Order] = []
        while count:
            turn, skipped = divmod(start, size)
            shuffled = np.random.default_rng([seed, number, turn]).permutation(whole)
            parts.append(shuffled[skipped : skipped + count])
            start, count = start + len(parts[-1]), count - len(parts[-1])
        return np.concatenate(parts)

    def _shares(self, weights: Sequence[float]) -> list[int]:
        for source, weight in zip(self.sources, weights, strict=True):
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(f"data {source.name}: expected a weight > 0, found {weight}")
        ends = [round(part / sum(weights) * len(self)) for part in accumulate(weights)]
        return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
