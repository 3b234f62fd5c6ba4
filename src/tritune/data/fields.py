"""Values of a row's fields: checked, with a reason in a few words where they cannot be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tritune.errors import DataError

_SURROGATE = re.compile("[\ud800-\udfff]")

_TYPE_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
}


class BadRow(DataError):
    """Why one row cannot be used, in a few words; who reads the file adds its name and the line."""


def text_of(row: Mapping[str, Any], key: str) -> str:
    """The text under ``key``. Raises BadRow when it is missing, not text, or not valid Unicode."""
    if key not in row:
        raise BadRow(f"no '{key}'")
    value = row[key]
    if not isinstance(value, str):
        raise BadRow(f"'{key}' is {describe(value)}, expected text")
    if _SURROGATE.search(value):
        raise BadRow(f"'{key}' holds half a surrogate pair, which is no valid Unicode")
    return value


def optional_text(row: Mapping[str, Any], key: str) -> str:
    """The text under ``key``; empty when it is missing or null. Raises BadRow."""
    return "" if row.get(key) is None else text_of(row, key)


def describe(value: object) -> str:
    """What a JSON value is, in words."""
    return _TYPE_NAMES.get(type(value), "an object")
