"""Data sets of the Hugging Face Hub, through the ``datasets`` library: an extra."""

from __future__ import annotations

import re
from typing import Any

from tritune.data.fields import BadRow
from tritune.errors import ConfigError, DataError

_ID = re.compile(r"(?P<id>[\w-][\w.-]*/[\w-][\w.-]*)(?::(?P<config>[\w.-]+))?(?:#(?P<split>[\w.\[\]:%+-]+))?")
_FILES = (".json", ".jsonl", ".gz", ".csv", ".parquet", ".txt")


def is_hub_id(text: str) -> bool:
    """Whether ``text`` has the form of a data set's id, and not of a file's name."""
    return _ID.fullmatch(text) is not None and not text.endswith(_FILES)


class HubValues:
    """Rows of a data set that lies on the disk in Arrow's format: read one by one."""

    def __init__(self, dataset: Any, name: str) -> None:
        self.name = name
        self._dataset = dataset

    @staticmethod
    def load(text: str, split: str) -> HubValues:
        """Download (once) and open ``org/name[:config][#split]``. Raises ConfigError without the extra, DataError."""
        found = _ID.fullmatch(text)
        assert found is not None
        try:
            import datasets
        except ImportError:
            raise ConfigError(
                f"data {text}: no such file, and data sets of the Hub need: pip install 'tritune[datasets]'"
            ) from None
        wanted = found["split"] or {"valid": "validation"}.get(split, split)
        try:
            dataset: Any = datasets.load_dataset(found["id"], found["config"], split=wanted)
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise DataError(f"data {text}: no such file, and not to be had from the Hub ({reason})") from error
        if not len(dataset):
            raise DataError(f"data {text}: the split {wanted} has no rows")
        return HubValues(dataset, f"{text}#{wanted}" if found["split"] is None else text)

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def digest(self) -> str:
        """The library's own, which follows from the content and what was done to it."""
        return str(self._dataset._fingerprint)

    @property
    def fingerprint(self) -> str | None:
        """As ``digest``."""
        return self.digest

    def line(self, index: int) -> int:
        """The row's number, from 1."""
        return index + 1

    def place(self, index: int) -> str:
        """Where a row stands, in words."""
        return f"row {index + 1}"

    def value(self, index: int) -> Any:
        """The row. Raises BadRow."""
        try:
            return self._dataset[index]
        except Exception as error:
            raise BadRow(f"cannot be read ({' '.join(str(error).split())[:200]})") from error
