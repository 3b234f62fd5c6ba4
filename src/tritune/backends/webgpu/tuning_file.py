"""What a tuning run chose for a device, kept in the user's folder for caches: one small JSON file a device."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, cast

from tritune.atomic import reason, write_atomic
from tritune.cache_folder import cache_root

from .choices import CANDIDATES, Choice

_MAX_BYTES = 64 << 10


class Tuning(NamedTuple):
    """What is in use for a device."""

    choices: Mapping[str, Choice]
    path: Path | None  # the file that they come from; None: there is none, or it was ignored
    problem: str | None = None  # why a file that is there was ignored


def tuning_path(device: Mapping[str, str]) -> Path:
    """Where the tuning of a device is kept; ``device`` are the facts that tell it apart (AdapterInfo.identity)."""
    digest = hashlib.sha256(json.dumps(_key(device)).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9]+", "-", device["name"]).strip("-")[:60]
    return cache_root() / "tuning" / f"{name}-{digest}.json"


def save_tuning(device: Mapping[str, str], choices: Mapping[str, Choice]) -> Path:
    """Write the tuning of a device, whole or not at all. Raises InputError, naming the file, if that cannot be."""
    path = tuning_path(device)
    content = {**_key(device), "choices": {name: list(choice) for name, choice in choices.items()}}
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())
    return path


def load_tuning(device: Mapping[str, str]) -> Tuning:
    """The tuning of a device; without choices where there is none. A file that cannot be used is told, never raised."""
    try:
        path = tuning_path(device)
    except RuntimeError:  # a user without a home
        return Tuning({}, None)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        return Tuning(_checked(data, _key(device)), path)
    except (FileNotFoundError, NotADirectoryError):
        return Tuning({}, None)
    except OSError as error:
        return Tuning({}, None, f"{path}: this tuning is ignored: {reason(error)}")
    except (ValueError, RecursionError) as error:
        told = "not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError) else error
        return Tuning({}, None, f"{path}: this tuning is ignored: {told}; `tritune info --tune` makes a new one")


def _key(device: Mapping[str, str]) -> dict[str, str]:
    try:
        version = metadata.version("tritune")
    except metadata.PackageNotFoundError:  # run from its source, not installed
        version = "unknown"
    return {**device, "tritune": version}


def _checked(data: bytes, key: Mapping[str, str]) -> dict[str, Choice]:
    """The choices of a file's content. Raises ValueError."""
    if len(data) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES} bytes")
    content: Any = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("expected an object")
    fields = cast(dict[str, Any], content)
    for name, expected in key.items():
        if fields.get(name) != expected:
            raise ValueError(f"it is of another {name}, expected {expected!r}")
    given = fields.get("choices")
    if not isinstance(given, dict):
        raise ValueError("expected choices, an object")
    choices: dict[str, Choice] = {}
    for name, numbers in cast(dict[str, Any], given).items():
        # Only what a tuning run may choose: a list equal to a candidate is one, whatever else JSON can hold.
        chosen = [candidate for candidate in CANDIDATES.get(name, ()) if list(candidate) == numbers]
        if not chosen:
            raise ValueError(f"{name[:60]!r} has no such choice")
        choices[name] = chosen[0]
    return choices
