"""The exceptions: the tree that is drawn is the tree that is there."""

from __future__ import annotations

import inspect
import re

import tritune
from tritune import errors

EXIT_CODES = {"TrituneError": 1, "InputError": 2, "ContextLengthError": 2, "DeviceError": 3, "TrainingError": 4}


def drawn_tree() -> dict[str, str | None]:
    """Parent of every class in the drawing at the top of the module."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+(?:Error))\b", line)
        if found:
            depth = len(found[1]) // 4
            del above[depth:]
            parents[found[2]] = above[-1] if above else None
            above.append(found[2])
    return parents


def classes() -> dict[str, type[Exception]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }


def test_the_drawing_is_the_tree() -> None:
    found = {name: value.__bases__[0].__name__ for name, value in classes().items()}
    found["TrituneError"] = None  # type: ignore[assignment]
    assert drawn_tree() == found


def test_every_error_is_exported_and_documented() -> None:
    for name, value in classes().items():
        assert getattr(tritune, name) is value
        assert value.__doc__


def test_exit_codes_are_those_of_the_drawing() -> None:
    for name, value in classes().items():
        ancestors = [base.__name__ for base in value.__mro__]
        nearest = next(ancestor for ancestor in ancestors if ancestor in EXIT_CODES)
        assert value.exit_code == EXIT_CODES[nearest], name  # type: ignore[attr-defined]
        line = next(line for line in (errors.__doc__ or "").splitlines() if name in line)
        drawn = re.search(r"\(exit (\d)\)", line)
        assert drawn is None or int(drawn[1]) == value.exit_code  # type: ignore[attr-defined]
