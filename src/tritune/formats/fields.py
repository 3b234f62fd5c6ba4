"""Typed reading of the fields of a JSON object or of GGUF metadata, with one clear line when a field is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard, cast

from tritune.errors import ModelFileError

MAX_JSON_BYTES = 1 << 28


class Fields:
    """The fields of ``mapping``; ``where`` names it in messages. A field that is null counts as absent."""

    def __init__(self, mapping: Mapping[str, Any], where: str) -> None:
        self.mapping = mapping
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self.mapping.get(key) is not None

    def error(self, key: str, expected: str) -> ModelFileError:
        """The error for a field that is not what was expected."""
        if key not in self:
            return ModelFileError(f"{self.where}: {key} is missing; expected {expected}")
        return ModelFileError(f"{self.where}: {key} is {short(self.mapping[key])}; expected {expected}")

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = 1 << 31) -> int:
        """An integer in [minimum, maximum]; required when there is no default."""
        if key not in self and default is not None:
            return default
        value = self.mapping.get(key)
        # A float such as 512.0 is how some writers store an integer.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not is_integer(value) or not minimum <= value <= maximum:
            raise self.error(key, f"an integer from {minimum} to {maximum}")
        return value

    def number(self, key: str, default: float | None = None, *, minimum: float = 0.0, exclusive: bool = False) -> float:
        """A finite number >= minimum (> minimum if exclusive)."""
        if key not in self and default is not None:
            return default
        value = self.mapping.get(key)
        if not is_number(value) or not math.isfinite(value) or value < minimum or (exclusive and value == minimum):
            raise self.error(key, f"a number {'>' if exclusive else '>='} {minimum:g}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        if key not in self:
            return default
        value = self.mapping[key]
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        if key not in self and default is not None:
            return default
        value = self.mapping.get(key)
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Token ids given as one integer, a list of them, or nothing at all."""
        if key not in self:
            return ()
        value = self.mapping[key]
        ids = cast("list[Any]", value) if isinstance(value, list) else [value]
        if not all(is_integer(token) and 0 <= token < 1 << 31 for token in ids):
            raise self.error(key, "a token id or a list of token ids")
        return tuple(dict.fromkeys(int(token) for token in ids))

    def section(self, key: str) -> Fields | None:
        """A nested object, or None when it is absent."""
        if key not in self:
            return None
        value = self.mapping[key]
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return Fields(cast("dict[str, Any]", value), f"{self.where}: {key}")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is an integer or a float and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def short(value: object) -> str:
    """A value as it is shown in a message: on one line, cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises ModelFileError when it cannot be read or holds something else."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFileError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB; expected a small JSON file")
        value: object = json.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ModelFileError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: expected a JSON object, found {short(value)}")
    return cast("dict[str, Any]", value)
