"""A look at all rows before they are trained on: what cannot be used and why, lengths, what is cut and left out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tritune.data.encode import RowEncoder
from tritune.data.examples import Item
from tritune.data.fields import BadRow
from tritune.data.mixture import RowSet


@dataclass
class Report:
    """What was found in the rows of a source, or of several."""

    rows: int = 0
    usable: int = 0
    """Rows that become examples."""
    shortened: list[str] = field(default_factory=list[str])
    """Where the rows stand whose prompt is cut from the left to fit."""
    left_out: list[str] = field(default_factory=list[str])
    """Where the rows stand that cannot be trained: their answer does not fit, or there is nothing to learn."""
    kinds: dict[str, int] = field(default_factory=dict[str, int])
    """Rows by what they are."""
    lengths: array[int] = field(default_factory=lambda: array("I"))
    """Tokens of each example: of a pair, of its longer sequence."""
    tokens: int = 0
    """Tokens of all examples: of pairs, of both sequences."""
    trained: int = 0
    """Tokens that are targets, of all examples."""
    bad: int = 0
    """Rows that cannot be used."""
    longest: str = ""
    """Where the row of the longest example stands."""
    first: Item | None = None
    """The first example."""

    def histogram(self) -> Iterator[tuple[int, int, int]]:
        """(least length, greatest length, examples) of ranges that end at powers of two, from the shortest on."""
        lengths = np.asarray(self.lengths)
        if not len(lengths):
            return
        ends = np.maximum(np.ceil(np.log2(lengths)).astype(int), 0)
        for end in range(int(ends.min()), int(ends.max()) + 1):
            yield (1 << end >> 1) + 1 if end else 1, 1 << end, int(np.count_nonzero(ends == end))


def check_rows(rows: RowSet, encoder: RowEncoder, on_problem: Callable[[str], None] = lambda _: None) -> Report:
    """Read and encode every row. ``on_problem`` is told, as one line, of each row that cannot be used."""
    report = Report()
    many = len(rows.sources) > 1
    most = 0
    for source in rows.sources:
        for index in range(len(source)):
            report.rows += 1
            place = (f"{source.name}: " if many else "") + source.place(index)
            try:
                row = source.parse(index)
                encoded = encoder.encode(row)
            except BadRow as reason:
                report.bad += 1
                on_problem(str(source.error(index, reason)))
                continue
            name = type(row).__name__.removesuffix("Row").lower()
            report.kinds[name] = report.kinds.get(name, 0) + 1
            if not encoded.items:
                report.left_out.append(place)
                continue
            report.usable += 1
            if encoded.shortened:
                report.shortened.append(place)
            for item in encoded.items:
                report.first = report.first or item
                length = max(len(sequence) for sequence in item.sequences)
                report.lengths.append(length)
                report.tokens += len(item)
                report.trained += sum(sequence.num_trained for sequence in item.sequences)
                if length > most:
                    most, report.longest = length, place
    return report
