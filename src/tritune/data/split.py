"""Held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ConfigError

T = TypeVar("T")


def split_rows(rows: Sequence[T], held_out: float, seed: int) -> tuple[list[T], list[T]]:
    """(rows to train on, held-out rows), both in the order of ``rows``; which are held out follows from ``seed`` alone.

    ``held_out``: below 1 a fraction (rounded, at least one row unless it is 0), from 1 a number of rows.
    Raises ConfigError when it is negative, a broken number above 1, or leaves nothing to train on.
    """
    chosen = set(held_out_rows(len(rows), held_out, seed).tolist())
    train = [row for index, row in enumerate(rows) if index not in chosen]
    return train, [row for index, row in enumerate(rows) if index in chosen]


def held_out_rows(rows: int, held_out: float, seed: int) -> NDArray[np.uint32]:
    """Indices of the rows that ``split_rows`` holds out. Raises ConfigError."""
    whole = float(held_out).is_integer()
    if not held_out >= 0 or (held_out > 1 and not whole):
        raise ConfigError(f"held-out rows: expected a fraction below 1 or a whole number, found {held_out}")
    count = int(held_out) if whole else max(1, round(held_out * rows))
    if count and count >= rows:
        raise ConfigError(f"held-out rows: {held_out:g} of {rows} rows leaves nothing to train on")
    return np.random.default_rng(seed).permutation(np.arange(rows, dtype=np.uint32))[:count]
