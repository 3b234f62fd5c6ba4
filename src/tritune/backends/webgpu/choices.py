"""What may be chosen for a device, by class of shape: the candidates that a tuning run times, and the defaults.

Every candidate gives the same results; they differ in time only. A tuned choice is one of them or it is not taken, so
that a file with choices cannot ask for a kernel that was never tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Choice = tuple[int, ...]

MANY_OUTPUTS = 8192
LONG_UNITS = 65
"""Loads of a row of packed weights from which on it is long: more than 4096 columns."""


def product_class(rows: int) -> str:
    """The class of a product in tiles. Its choices are the fields of tiles.Tile."""
    return "products, up to 64 rows" if rows <= 64 else "products, more rows"


def linear_class(rows: int, outputs: int, units: int) -> str:
    """The class of a linear of few rows. Its choices: threads, lanes, tile, the most that is unrolled, rows at once."""
    return _linear(rows <= 2, outputs >= MANY_OUTPUTS, units >= LONG_UNITS)


def head_class(rows: int) -> str:
    """The class of the head of few rows. Its choices: threads, lanes, tile, unroll."""
    return f"head, {'1 to 2' if rows <= 2 else '3 to 16'} rows"


def _linear(one: bool, many: bool, long: bool) -> str:
    rows, width = "1 to 2" if one else "3 to 16", "more than" if long else "up to"
    return f"linear, {rows} rows, {width} 4096 columns, {'many' if many else 'few'} outputs"


def _linear_candidates(one: bool, many: bool, long: bool) -> tuple[Choice, ...]:
    lanes = 16 if long else 8
    if one:
        return (
            (128, lanes, 1, 8, 16),
            (64, lanes, 1, 8, 16),
            (256, lanes, 1, 8, 16),
            (128, lanes, 2, 8, 16),
            (128, 2 * lanes, 2 if many else 1, 4, 16),
            (128, lanes // 2, 2 if many else 1, 8, 16),
            (128, lanes, 4, 2, 16),
            (64, 16, 1, 1, 16),
        )
    tile, block = (8, 4) if many else (4, 2)
    return (
        (128, lanes, tile, 1, block),
        (64, lanes, tile, 1, block),
        (256, lanes, tile, 1, block),
        (128, lanes, tile, 1, 6 - block),
        (128, lanes, tile // 2, 1, 4),
        (128, 2 * lanes, tile, 1, 4),
        (128, lanes, tile // 2, 1, 8),
        (128, lanes, 2, 1, 8),
        (64, 16, 1, 1, 16),
    )


_ONE_ROW_HEAD = ((128, 32, 2, 2), (256, 32, 2, 2), (256, 32, 2, 5), (128, 32, 2, 5), (128, 16, 2, 5), (64, 16, 1, 1))
_ROWS_HEAD = ((64, 8, 8, 1), (128, 8, 8, 1), (128, 8, 4, 1), (128, 16, 8, 1), (64, 16, 8, 1), (64, 16, 1, 1))
_FORMS = [(one, many, long) for one in (True, False) for long in (False, True) for many in (False, True)]

CANDIDATES: Mapping[str, tuple[Choice, ...]] = MappingProxyType(
    {
        "products, more rows": (
            (128, 128, 16, 8, 8),
            (128, 128, 8, 8, 8),
            (128, 64, 16, 8, 8),
            (64, 128, 16, 8, 8),
            (64, 128, 16, 4, 8),
            (64, 64, 16, 8, 8),
            (64, 64, 16, 4, 4),
            (64, 64, 32, 8, 8),
        ),
        "products, up to 64 rows": (
            (64, 128, 16, 8, 8),
            (64, 128, 16, 4, 8),
            (64, 128, 8, 8, 8),
            (64, 64, 16, 8, 8),
            (64, 64, 16, 8, 4),
            (64, 64, 16, 4, 4),
        ),
        # Workgroups that the device runs at a time, for which the depth of small products is split.
        "splits": ((264,), (16,), (32,), (64,), (128,), (512,)),
        head_class(1): _ONE_ROW_HEAD,
        head_class(3): _ROWS_HEAD,
        **{_linear(*form): _linear_candidates(*form) for form in _FORMS},
    }
)
"""By class, the default of hardware first: of those tried on an H200 the fastest, or within 3 % of it, for every
product of the 2B-4T model (of the heads of few rows, within 11 %)."""
