"""What a user names as data, opened: files, folders with splits, data sets of the Hugging Face Hub, rows in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from tritune.data.hub import HubValues, is_hub_id
from tritune.data.mixture import RowSet
from tritune.data.row_file import RowFile
from tritune.data.rows import Row
from tritune.data.source import ListValues, RowSource, Values
from tritune.errors import ConfigError, DataError

SPLITS = {
    "train": ("train",),
    "valid": ("valid", "validation", "val", "dev", "eval"),
    "test": ("test",),
}
SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")

Data = str | Path | Sequence[Mapping[str, Any]] | Sequence[str | Path] | Mapping[str, float] | RowSet
"""A source, several of them, several with weights, rows themselves, or what ``open_rows`` made of them."""


def open_rows(data: Data, split: str = "train") -> RowSet:
    """Open rows of training data; nothing but what is needed to find them is read.

    A source is a JSON or JSONL file (plain or gzip), a folder with files of the splits train, valid and test, or the id
    of a data set on the Hugging Face Hub (``org/name``, ``org/name:config``, ``org/name#split``). Several sources
    (a list) are joined; with weights (a mapping, or ``source=weight``) each gives its share of an epoch's rows.
    Raises DataError naming the source, ConfigError for weights that make no sense.
    """
    if isinstance(data, RowSet):
        return data
    named = named_sources(data)
    if named is None:
        return RowSet([RowSource(ListValues(cast("Sequence[Mapping[str, Any]]", data)))])
    sources = [RowSource(open_values(name, split)) for name, _ in named]
    weights = [weight for _, weight in named]
    if not any(weight is not None for weight in weights):
        return RowSet(sources, named=named)
    if len(named) == 1:
        raise ConfigError(f"data {named[0][0]}: a weight says a share beside other sources, and there is only this one")
    missing = next((name for name, weight in named if weight is None), None)
    if missing is not None:
        raise ConfigError(f"data {missing}: no weight; expected one for each source or for none")
    return RowSet(sources, [weight for weight in weights if weight is not None], named)


def named_sources(data: Data) -> list[tuple[str, float | None]] | None:
    """(source, weight) of each source that ``data`` names; None when it is rows."""
    if isinstance(data, RowSet):
        return data.named
    if isinstance(data, (str, Path)):
        return [split_weight(str(data))]
    if isinstance(data, Mapping):
        return [(str(name), weight) for name, weight in data.items()]
    names = [split_weight(str(item)) for item in data if isinstance(item, (str, Path))]
    return names if names and len(names) == len(data) else None


def split_weight(text: str) -> tuple[str, float | None]:
    """``source=0.3`` as (source, 0.3); a file that is called so is a source without a weight."""
    name, equals, weight = text.rpartition("=")
    if not equals or Path(text).exists():
        return text, None
    try:
        return name, float(weight)
    except ValueError:
        return text, None


def read_rows(
    source: str | Path | Sequence[Mapping[str, Any]], bad_rows: Literal["error", "skip"] = "error"
) -> list[Row]:
    """All rows of a source, in memory; see ``open_rows``.

    ``bad_rows``: whether one row that cannot be used is an error, or is left out. Raises DataError naming file and line
    when the file is missing, empty, not JSON, of an unknown kind, or when no row can be used.
    """
    (opened,) = open_rows(source).sources
    return opened.read_all(skip_bad=bad_rows == "skip")


def find_split(folder: Path, split: str) -> Path:
    """The file of a split (train, valid, test) in a folder. Raises DataError when there is none, or more than one."""
    names = [f"{stem}{suffix}" for stem in SPLITS[split] for suffix in SUFFIXES]
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) != 1:
        what = f"both {found[0].name} and {found[1].name}" if found else f"none of {', '.join(names)}"
        raise DataError(f"{folder}: expected one file of {split} rows, found {what}")
    return found[0]


def folders_with(data: Data, split: str) -> list[str]:
    """The folders among the sources of ``data`` that have a file of this split too."""
    folders = [(name, Path(name)) for name, _ in named_sources(data) or [] if Path(name).is_dir()]
    files = [f"{stem}{suffix}" for stem in SPLITS[split] for suffix in SUFFIXES]
    return [name for name, folder in folders if any((folder / file).is_file() for file in files)]


def open_values(source: str | Path | Sequence[Mapping[str, Any]], split: str = "train") -> Values:
    """The JSON values of a file, of a folder's or a data set's split, or of a list. Raises DataError."""
    if not isinstance(source, (str, Path)):
        return ListValues(source)
    path = Path(source)
    if path.is_dir():
        return RowFile(find_split(path, split))
    if not path.exists() and is_hub_id(str(source)):
        return HubValues.load(str(source), split)
    return RowFile(path)
