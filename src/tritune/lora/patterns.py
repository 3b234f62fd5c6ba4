"""Matching module names in adapter files without ever running a regular expression that came from a file."""

from __future__ import annotations

from dataclasses import dataclass

from tritune.errors import AdapterError
from tritune.formats.fields import short

META = frozenset("\\*+?[](){}|^$")


def plain(name: str) -> str:
    """A name from a file as a message shows it: on one line, not too long."""
    return name if name.isprintable() and len(name) <= 160 else short(name)


def ends_with(path: str, name: str) -> bool:
    """Whether a module's path is the name or ends with it at a dot."""
    return path == name or path.endswith("." + name)


@dataclass(frozen=True)
class Pattern:
    """A key of rank_pattern or alpha_pattern: the end of a path, or with ``^`` the whole of it.

    Equal to peft's ``re.match(rf"(.*\\.)?({key})$", path)`` for every key that it accepts, in time linear in the key.
    """

    characters: tuple[str | None, ...]  # None stands for any one character: a dot without a backslash
    whole: bool

    @classmethod
    def parse(cls, key: str, where: str) -> Pattern:
        """Raises AdapterError for a key that needs a regular expression."""
        text = key.removesuffix("$") if not key.endswith("\\$") else key
        whole = text.startswith("^")
        pieces = text.removeprefix("^").split("\\.")
        if not text.strip("^") or any(META & set(piece) for piece in pieces):
            raise AdapterError(f"{where} {short(key)} is a regular expression; expected a module's name or path")
        characters: list[str | None] = []
        for index, piece in enumerate(pieces):
            characters += [".", *piece] if index else [*piece]
            start = len(characters) - len(piece)
            characters[start:] = [None if c == "." else c for c in piece]
        return cls(tuple(characters), whole)

    def matches(self, path: str) -> bool:
        """Whether the pattern matches a module's path."""
        before = len(path) - len(self.characters)
        if before < 0 or (before > 0 and (self.whole or path[before - 1] != ".")):
            return False
        return all(c is None or c == p for c, p in zip(self.characters, path[before:], strict=True))
