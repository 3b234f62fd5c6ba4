"""Rows of one file, list or data set of the Hub: of one kind, read when they are asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tritune.data.counts import RowCounts
from tritune.data.fields import BadRow, describe
from tritune.data.json_text import BadJson
from tritune.data.preference import PreferenceRow
from tritune.data.rows import EXPECTED, Row, RowKind, kind_of
from tritune.errors import DataError

_PROBED = 100
"""Rows that are looked at to tell the kind of all."""

HELD_ROWS = 20_000
"""Sources of at most so many rows are verified when they are opened, and held in memory."""


class Values(Protocol):
    """Where rows come from: JSON values by index."""

    name: str

    def __len__(self) -> int: ...

    @property
    def digest(self) -> str:
        """Equal for the same rows, wherever they are."""
        ...

    @property
    def fingerprint(self) -> str | None:
        """Changes when the rows do, at little cost; None for rows of which nothing is kept between runs."""
        ...

    def line(self, index: int) -> int:
        """Number of a row for people: its line, or its place in a list; from 1."""
        ...

    def place(self, index: int) -> str:
        """Where a row stands, in words."""
        ...

    def value(self, index: int) -> Any:
        """Raises BadRow."""
        ...


class ListValues:
    """Rows that are in memory."""

    name = "rows given"
    fingerprint = None

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raises DataError when there are none."""
        if not rows:
            raise DataError(f"{self.name}: there are none")
        self._rows = rows

    @property
    def digest(self) -> str:
        """Hexadecimal digest of the rows."""
        digest = hashlib.sha256()
        for row in self._rows:
            digest.update(json.dumps(row, sort_keys=True, default=repr).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self._rows)

    def line(self, index: int) -> int:
        """The row's number, from 1."""
        return index + 1

    def place(self, index: int) -> str:
        """Where a row stands, in words."""
        return f"row {index + 1}"

    def value(self, index: int) -> Any:
        """The row."""
        return self._rows[index]


class RowSource:
    """Rows by index, verified when they are read: of a short source all at once, of a long one in their turn."""

    def __init__(self, values: Values, kept: NDArray[np.uint32] | None = None) -> None:
        """``kept``: only these rows, by index. Raises DataError when the rows are of no known kind."""
        self._values = values
        self._indices = kept
        self.name = values.name
        self._kind = self._find_kind()

    def __len__(self) -> int:
        return len(self._values) if self._indices is None else len(self._indices)

    def select(self, kept: NDArray[np.uint32]) -> RowSource:
        """The rows of these indices (of a source of all rows)."""
        return RowSource(self._values, kept)

    def original(self, index: int) -> int:
        """The index of a row among all that the source had before some were selected."""
        return index if self._indices is None else int(self._indices[index])

    @property
    def num_original(self) -> int:
        """How many rows the source had before some were selected."""
        return len(self._values)

    def __getitem__(self, index: int) -> Row:
        """A row. Raises DataError naming file and line when it cannot be used."""
        if len(self) <= HELD_ROWS:
            return self._held[index]
        try:
            return self.parse(index)
        except BadRow as reason:
            raise self.error(index, reason) from reason

    def verify(self) -> None:
        """Raise DataError now when a row cannot be used and there are few enough to look at all."""
        if len(self) <= HELD_ROWS:
            _ = self._held

    @property
    def kind(self) -> RowKind | None:
        """The kind of the rows; None when none of the first is an object."""
        return self._kind

    @property
    def is_preference(self) -> bool:
        """Whether the rows are pairs of answers."""
        return self._kind is PreferenceRow

    @property
    def fingerprint(self) -> str | None:
        """Changes when the rows do; None when that cannot be told."""
        return self._values.fingerprint

    @property
    def digest(self) -> str:
        """Equal for the same rows, wherever they are."""
        kept = "" if self._indices is None else hashlib.sha256(self._indices.tobytes()).hexdigest()
        return self._values.digest + kept

    def line(self, index: int) -> int:
        """Number of a row for people, from 1."""
        return self._values.line(self.original(index))

    def place(self, index: int) -> str:
        """Where a row stands, in words."""
        return self._values.place(self.original(index))

    def parse(self, index: int) -> Row:
        """A row. Raises BadRow with the reason alone."""
        value = self._values.value(self.original(index))
        if self._kind is None or not isinstance(value, Mapping):
            raise BadRow(f"the row is {describe(value)}, expected an object")
        return self._kind.parse(cast("Mapping[str, Any]", value), self.line(index))

    def error(self, index: int, reason: BadRow, more: str = "") -> DataError:
        """What to tell about a row that cannot be used."""
        if isinstance(reason, BadJson):
            return DataError(f"{self.name}:{reason.line}: {reason}{more}")
        return DataError(f"{self.name}: {self.place(index)}: {reason}{more}")

    def read_all(self, skip_bad: bool = False) -> list[Row]:
        """All rows. Raises DataError for the first that cannot be used, or, with ``skip_bad``, when all are so."""
        rows: list[Row] = []
        refused = RowCounts()
        first: tuple[int, BadRow] | None = None
        for index in range(len(self)):
            try:
                rows.append(self.parse(index))
            except BadRow as reason:
                first = first or (index, reason)
                refused.add(str(reason), self.place(index))
        if first and (len(self) == 1 and isinstance(first[1], BadJson)):
            raise self.error(*first)
        if not rows:
            raise DataError(f"{self.name}: 0 of {len(self)} rows usable: {refused}")
        if first and not skip_bad:
            raise self.error(*first, more=f" ({refused.total} of {len(self)} rows cannot be used)")
        return rows

    @cached_property
    def _held(self) -> list[Row]:
        return self.read_all()

    def _find_kind(self) -> RowKind | None:
        objects: list[Mapping[str, Any]] = []
        for index in range(min(len(self), _PROBED)):
            try:
                value = self._values.value(self.original(index))
            except BadRow:
                continue
            if isinstance(value, Mapping):
                objects.append(cast("Mapping[str, Any]", value))
        kind = kind_of(objects)
        if kind is None and objects:
            keys = ", ".join(sorted(str(key)[:40] for key in objects[0])[:20]) or "none"
            raise DataError(f"{self.name}: rows with the keys {keys} are not supported; expected {EXPECTED}")
        return kind
