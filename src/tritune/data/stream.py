"""Examples into micro-batches, in an order that follows from the seed and the epoch.

An epoch's shuffled rows are taken window by window; only a window's examples are
in memory, and a stream is begun anywhere by making its window again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tritune.data.batches import Batch, pack
from tritune.data.dataset import Dataset
from tritune.data.examples import Item
from tritune.data.packing import by_length, fill
from tritune.errors import ConfigError

WINDOW = 32
"""Micro-batches that are made together: with more they fill better, with fewer less is tokenised ahead."""


@dataclass(frozen=True)
class StreamPosition:
    """Where a run stands: of ``epoch``, ``row`` rows lie behind the current window, of which ``batch`` batches were
    taken."""

    epoch: int = 0
    row: int = 0
    batch: int = 0


@dataclass(frozen=True)
class _Window:
    """Batches made of the next ``rows`` rows of the epoch."""

    rows: int
    batches: list[list[Item]]


class DataStream:
    """Micro-batches of epoch after epoch without end; ``position`` may be stored, and a stream begun from it."""

    def __init__(
        self, dataset: Dataset, max_tokens: int, seed: int, position: StreamPosition | None = None, packing: bool = True
    ) -> None:
        """``packing``: batches are filled with rows of any length; else rows of similar length come together, and a
        batch holds as many as it could if each were as long as the longest.

        Raises ConfigError for a position that the data set does not have, and what reading the first rows raises.
        """
        self._dataset = dataset
        self._max_tokens = max_tokens
        self._seed = seed
        self._packing = packing
        self._position = position or StreamPosition()
        self._order = dataset.order(seed, self._position.epoch)
        if not 0 <= self._position.row < len(self._order):
            raise ConfigError(f"epoch {self._position.epoch} has {len(self._order)} rows, not {self._position.row}")
        self._window: _Window | None = self._make_window()
        if not self._window.batches and not self._position.row:
            raise dataset.nothing_to_train()
        if not 0 <= self._position.batch < max(len(self._window.batches), 1):
            raise ConfigError(
                f"epoch {self._position.epoch} has {len(self._window.batches)} batches behind row "
                f"{self._position.row}, not {self._position.batch}"
            )
        self._rows_of_first = self._window.rows
        self._batches_per_row = len(self._window.batches) / self._window.rows

    @property
    def position(self) -> StreamPosition:
        """Where the stream stands; a stream made with it goes on with the next batch."""
        return self._position

    @property
    def epochs_done(self) -> float:
        """Epochs that were taken: whole ones, and the share of the current one's rows. Grows with every batch."""
        row: float = self._position.row
        if self._window is not None and self._window.batches:
            row += self._position.batch / len(self._window.batches) * self._window.rows
        return self._position.epoch + row / self._dataset.rows_per_epoch

    @property
    def is_one_window(self) -> bool:
        """Whether all rows of an epoch are in memory together, so that its batches are counted and not estimated."""
        return self._rows_of_first == len(self._order)

    def estimate_batches(self, epochs: float = 1.0) -> int:
        """About how many micro-batches some epochs have, at least 1: exact when all rows fit a window, else as many a
        row as in the first window of this stream."""
        return max(1, math.ceil(epochs * self._batches_per_row * self._dataset.rows_per_epoch - 1e-6))

    def epoch(self) -> Iterator[Batch]:
        """The remaining batches of the current epoch; after the last one the stream stands at the next epoch."""
        current = self._position.epoch
        while self._made_window() and self._position.epoch == current:
            yield next(self)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch. Raises DataError when a row that it needs cannot be used."""
        window, at = self._made_window(), self._position
        batch = pack(window.batches[at.batch])
        if at.batch + 1 < len(window.batches):
            self._position = StreamPosition(at.epoch, at.row, at.batch + 1)
        else:
            self._go_to(at.epoch, at.row + window.rows)
        return batch

    def _made_window(self) -> _Window:
        """The window of the position, which moves on where no row can be trained."""
        while True:
            if self._window is None:
                self._window = self._make_window()
            if self._window.batches:
                return self._window
            self._go_to(self._position.epoch, self._position.row + self._window.rows)

    def _go_to(self, epoch: int, row: int) -> None:
        self._window = None  # made when it is needed: the run may end here
        if row == len(self._order):
            epoch, row = epoch + 1, 0
            self._order = self._dataset.order(self._seed, epoch)
        self._position = StreamPosition(epoch, row)

    def _make_window(self) -> _Window:
        """Batches of the next rows, of about WINDOW batches' tokens in all; none when no row up to the end will do."""
        items: list[Item] = []
        tokens = rows = 0
        for index in self._order[self._position.row :]:
            rows += 1
            for item in self._dataset[int(index)]:
                if len(item) > self._max_tokens:
                    what = "an example" if len(item.sequences) == 1 else "a pair of answers"
                    raise ConfigError(f"a micro-batch of {self._max_tokens} tokens cannot hold {what} of {len(item)}")
                items.append(item)
                tokens += len(item)
            if tokens >= WINDOW * self._max_tokens:
                break
        arrange = fill if self._packing else by_length
        plan = arrange([len(item) for item in items], self._max_tokens)
        at = self._position
        np.random.default_rng([self._seed, at.epoch, at.row]).shuffle(plan)  # or the long ones would come first
        return _Window(rows, [[items[index] for index in batch] for batch in plan])
