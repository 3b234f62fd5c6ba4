"""Rows of training data: what a file may hold, detected once per file and verified row by row.

A kind of row is one class with ``keys`` (which say that a file is of this kind) and ``parse``. A new one is added to
``Row`` and ``ROW_KINDS``. Reading text into objects with line numbers is ``files.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from tritune.errors import DataError

_TYPE_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
}


class BadRow(DataError):
    """Why one row cannot be used, in a few words; ``read_rows`` adds the file and the line."""


@dataclass(frozen=True)
class Turn:
    """One message of a conversation. ``trained``: an assistant's answer that is learnt (others never are)."""

    role: str
    content: str
    trained: bool = True


@dataclass(frozen=True)
class AlpacaRow:
    """``{instruction, input, output}``; ``input`` may be missing."""

    keys: ClassVar[tuple[str, ...]] = ("instruction", "output")
    instruction: str
    input: str
    output: str
    line: int = 0

    @staticmethod
    def parse(row: Mapping[str, Any], line: int) -> AlpacaRow:
        """Raises BadRow."""
        given = row.get("input")
        return AlpacaRow(
            instruction=text_of(row, "instruction"),
            input="" if given is None else text_of(row, "input"),
            output=text_of(row, "output"),
            line=line,
        )


@dataclass(frozen=True)
class ChatRow:
    """``{messages: [{role, content}]}`` with at least one answer to learn."""

    keys: ClassVar[tuple[str, ...]] = ("messages",)
    turns: tuple[Turn, ...]
    line: int = 0

    @staticmethod
    def parse(row: Mapping[str, Any], line: int) -> ChatRow:
        """Raises BadRow."""
        messages = row.get("messages")
        if not isinstance(messages, list):
            raise BadRow(
                f"'messages' is {describe(messages)}, expected a list" if "messages" in row else "no 'messages'"
            )
        turns = tuple(_parse_turn(message) for message in cast("list[Any]", messages))
        if not any(turn.role == "assistant" and turn.trained for turn in turns):
            raise BadRow("no answer of the assistant to learn")
        return ChatRow(turns, line)


@dataclass(frozen=True)
class CompletionRow:
    """``{prompt, completion}``: plain text, the completion is learnt."""

    keys: ClassVar[tuple[str, ...]] = ("prompt", "completion")
    prompt: str
    completion: str
    line: int = 0

    @staticmethod
    def parse(row: Mapping[str, Any], line: int) -> CompletionRow:
        """Raises BadRow."""
        return CompletionRow(text_of(row, "prompt"), text_of(row, "completion"), line)


@dataclass(frozen=True)
class TextRow:
    """``{text}``: all of it is learnt."""

    keys: ClassVar[tuple[str, ...]] = ("text",)
    text: str
    line: int = 0

    @staticmethod
    def parse(row: Mapping[str, Any], line: int) -> TextRow:
        """Raises BadRow."""
        text = text_of(row, "text")
        if not text:
            raise BadRow("'text' is empty")
        return TextRow(text, line)


Row = AlpacaRow | ChatRow | CompletionRow | TextRow

# In the order in which they are looked for: Alpaca files often repeat their prompt in a column "text".
ROW_KINDS: tuple[type[AlpacaRow] | type[ChatRow] | type[CompletionRow] | type[TextRow], ...] = (
    ChatRow,
    AlpacaRow,
    CompletionRow,
    TextRow,
)

# Keys of kinds of training that are not supervised fine-tuning: dropping them silently would train something else.
_OTHER_TRAINING = ("chosen", "rejected")


@dataclass
class RowCounts:
    """Reasons why rows were refused: how often, and where first ("line 4")."""

    reasons: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])

    def add(self, reason: str, place: str) -> None:
        """Count one refused row."""
        count, first = self.reasons.get(reason, (0, place))
        self.reasons[reason] = (count + 1, first)

    @property
    def total(self) -> int:
        """Refused rows in all."""
        return sum(count for count, _ in self.reasons.values())

    @property
    def first(self) -> tuple[str, str]:
        """Reason and place of the first refused row (there is one)."""
        reason, (_, place) = next(iter(self.reasons.items()))
        return reason, place

    def __str__(self) -> str:
        most_first = sorted(self.reasons.items(), key=lambda item: -item[1][0])
        shown = [f"{count}× {reason} (first at {place})" for reason, (count, place) in most_first[:5]]
        more = len(most_first) - len(shown)
        return ", ".join(shown) + (f" and {more} other reasons" if more else "")


def kind_of(rows: Sequence[Mapping[str, Any]]) -> type[Row] | None:
    """The kind that the keys of the first of ``rows`` that fits any kind say, or None."""
    for row in rows:
        if any(key in row for key in _OTHER_TRAINING):
            continue
        for kind in ROW_KINDS:
            if all(key in row for key in kind.keys):
                return kind
    for row in rows:  # no row is whole: the kind whose first key is there can say best what is missing
        for kind in ROW_KINDS:
            if kind.keys[0] in row and not any(key in row for key in _OTHER_TRAINING):
                return kind
    return None


def text_of(row: Mapping[str, Any], key: str) -> str:
    """The text under ``key``. Raises BadRow when it is missing, not text, or not valid Unicode."""
    if key not in row:
        raise BadRow(f"no '{key}'")
    value = row[key]
    if not isinstance(value, str):
        raise BadRow(f"'{key}' is {describe(value)}, expected text")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise BadRow(f"'{key}' holds half a surrogate pair, which is no valid Unicode")
    return value


def describe(value: object) -> str:
    """What a JSON value is, in words."""
    return _TYPE_NAMES.get(type(value), "an object")


def _parse_turn(message: Any) -> Turn:
    if not isinstance(message, Mapping):
        raise BadRow(f"a message is {describe(message)}, expected an object with role and content")
    fields = cast("Mapping[str, Any]", message)
    role = text_of(fields, "role")
    if role not in ("system", "user", "assistant"):
        raise BadRow(f"a message has the role {role[:40]!r}, expected system, user or assistant")
    if fields.get("tool_calls"):
        raise BadRow("a message has 'tool_calls', which are not supported")
    if isinstance(fields.get("content"), list):
        content = "".join(_text_part(part) for part in cast("list[Any]", fields["content"]))
    else:
        content = text_of(fields, "content")
    return Turn(role, content, trained=_is_trained(fields))


def _text_part(part: Any) -> str:
    """One part of a content that is a list: ``{"type": "text", "text": …}``, in some files ``"value"``."""
    fields = cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {}
    if fields.get("type") != "text":
        raise BadRow("a message's content has a part that is not text")
    return text_of(fields, "value" if "value" in fields else "text")


def _is_trained(message: Mapping[str, Any]) -> bool:
    """``weight`` (or ``loss_weight``) 0 marks an answer that is context only."""
    for key in ("weight", "loss_weight"):
        if key in message:
            weight = message[key]
            if weight not in (0, 1):
                raise BadRow(f"'{key}' is {weight!r}, expected 0 or 1")
            return bool(weight)
    return True
