"""Rows of training data: what a file may hold, detected once per file and verified row by row.

A kind of row is one class with ``keys`` (which say that a row is of this kind) and ``parse``. A new one is added to
``Row`` and ``ROW_KINDS``. Reading text into objects with line numbers is ``files.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tritune.data.fields import BadRow, optional_text, text_of
from tritune.data.messages import Turns, context_only, has_answer, parse_turns, with_columns
from tritune.data.preference import PreferenceRow

_Keys = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class AlpacaRow:
    """``{instruction, input, output}``; ``input`` and ``system`` may be missing."""

    keys: ClassVar[_Keys] = (("instruction", "output"),)
    instruction: str
    input: str
    output: str
    line: int = 0
    system: str = ""

    @staticmethod
    def parse(row: Mapping[str, Any], line: int) -> AlpacaRow:
        """Raises BadRow."""
        if row.get("history"):
            raise BadRow("'history' is not supported; write such rows as messages")
        return AlpacaRow(
            instruction=text_of(row, "instruction"),
            input=optional_text(row, "input"),
            output=text_of(row, "output"),
            line=line,
            system=optional_text(row, "system"),
        )


@dataclass(frozen=True)
class ChatRow:
    """``{messages: [{role, content}]}`` or ``{conversations: [{from, value}]}``, with at least one answer to learn."""

    keys: ClassVar[_Keys] = (("messages",), ("conversations",))
    turns: Turns
    line: int = 0

    @staticmethod
    def parse(row: Mapping[str, Any], line: int) -> ChatRow:
        """Raises BadRow."""
        name = "messages" if "messages" in row or "conversations" not in row else "conversations"
        if name not in row:
            raise BadRow("no 'messages'")
        return _chat(with_columns(parse_turns(row[name], name), row), line)


@dataclass(frozen=True)
class CompletionRow:
    """``{prompt, completion}``: plain text, the completion is learnt."""

    keys: ClassVar[_Keys] = (("prompt", "completion"),)
    prompt: str
    completion: str
    line: int = 0

    @staticmethod
    def parse(row: Mapping[str, Any], line: int) -> CompletionRow | ChatRow:
        """Raises BadRow. Where prompt and completion are lists of messages (TRL), the row is a conversation."""
        if isinstance(row.get("label"), bool):
            raise BadRow("'label' marks good and bad answers (KTO), which cannot be trained on")
        if isinstance(row.get("prompt"), list):
            prompt = context_only(parse_turns(row["prompt"], "prompt"))
            return _chat(with_columns((*prompt, *parse_turns(row.get("completion"), "completion")), row), line)
        return CompletionRow(text_of(row, "prompt"), text_of(row, "completion"), line)


@dataclass(frozen=True)
class TextRow:
    """``{text}``: all of it is learnt."""

    keys: ClassVar[_Keys] = (("text",),)
    text: str
    line: int = 0

    @staticmethod
    def parse(row: Mapping[str, Any], line: int) -> TextRow:
        """Raises BadRow."""
        text = text_of(row, "text")
        if not text:
            raise BadRow("'text' is empty")
        return TextRow(text, line)


Row = AlpacaRow | ChatRow | CompletionRow | TextRow | PreferenceRow
RowKind = type[AlpacaRow] | type[ChatRow] | type[CompletionRow] | type[TextRow] | type[PreferenceRow]

# In the order in which they are looked for: preference rows hold a prompt, often as messages, and Alpaca files often
# repeat their prompt in a column "text".
ROW_KINDS: tuple[RowKind, ...] = (PreferenceRow, ChatRow, AlpacaRow, CompletionRow, TextRow)

EXPECTED = (
    "messages or conversations, or instruction and output, or prompt and completion, or text, or chosen and rejected"
)


def kind_of(rows: Sequence[Mapping[str, Any]]) -> RowKind | None:
    """The kind that the keys of the first of ``rows`` that fits any kind say, or None."""
    for row in rows:
        for kind in ROW_KINDS:
            if any(all(key in row for key in keys) for keys in kind.keys):
                return kind
    for row in rows:  # no row is whole: the kind whose first key is there can say best what is missing
        for kind in ROW_KINDS:
            if any(keys[0] in row for keys in kind.keys):
                return kind
    return None


def _chat(turns: Turns, line: int) -> ChatRow:
    if not has_answer(turns):
        raise BadRow("no answer of the assistant to learn")
    return ChatRow(turns, line)
