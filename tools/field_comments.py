"""Documentation of dataclass fields: the list of attributes of their class, with the comments behind them and defaults.

An extension of griffe, which reads the sources for the reference pages (see mkdocs.yml).
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_COMMENT = re.compile(r"#\s+(?!(?:type|noqa|pyright|fmt)\b)(.+)$")


class FieldComments(griffe.Extension):
    """Adds a section "Attributes" to the docstring of each dataclass, with the fields that have no docstring."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called when griffe has met all members of a class."""
        if "dataclass" not in cls.labels and not any("dataclass" in str(item.value) for item in cls.decorators):
            return
        lines = [f"    {name}: {said}" for name in cls.members if (said := _said(cls, name))]
        if lines:
            text = cls.docstring.value if cls.docstring else ""
            cls.docstring = griffe.Docstring("\n".join([text, "", "Attributes:", *lines]), parent=cls)


def _said(cls: griffe.Class, name: str) -> str:
    member = cls.members[name]
    if name.startswith("_") or not member.is_attribute or member.docstring is not None or member.lineno is None:
        return ""
    if "property" in member.labels or "instance-attribute" not in member.labels:
        return ""
    found = _COMMENT.search(cls.lines_collection[cls.filepath][member.lineno - 1])  # type: ignore[index]
    comment = found[1].replace("_", "\\_") if found else ""
    value = "" if member.value is None else str(member.value)
    default = f"Default: `{value}`" if value and "(" not in value else ""
    return ". ".join(filter(None, (comment, default))) or "\u2003"
