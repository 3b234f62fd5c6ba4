"""Chat messages to token ids: the template's markup becomes special tokens, the content of messages never does.

How. Every special token's string inside a message is replaced, before rendering, by a stand-in of two private
characters. So the rendered text holds a special token's string only where the template wrote one. It is cut there; what
lies between is put back to what the messages said and encoded with special tokens off. Ordinary content thus gets the
very ids that encoding the rendered text as a whole gives, and ``<|eot_id|>Assistant:`` in a message gets ordinary ones.

An assistant turn is cut once more, where the template's generation prompt ends. Generation starts exactly there, so the
tokens that are trained are those that are generated, and a chat's next prompt begins with the tokens in its cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tritune.errors import DataError, ModelFileError
from tritune.text.template import ChatTemplate, Message
from tritune.text.tokenizer import Tokenizer, check_unicode

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

# A stand-in is a mark, a character of private plane 15 that no message and no template holds, and an index in plane 16.
_MARKS = range(0xF0000, 0xFFFFE)
_FIRST_INDEX = 0x100000


@dataclass(frozen=True)
class EncodedTurns:
    """``tokens`` int32 [T]; ``trained`` bool [T]: the token is of an answer or ends its turn, and is a target."""

    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]


@dataclass(frozen=True)
class _Span:
    """Characters of the rendered text that are encoded on their own: an answer, or what lies between answers."""

    start: int
    end: int
    message: int | None  # index of the assistant's message, for the answer


def encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], add_generation_prompt: bool = True
) -> list[int]:
    """Ids of a conversation, BOS exactly once if the model wants it; with the generation prompt, ready for an answer.

    Raises DataError for messages that are not a conversation, ModelFileError when the template fails.
    """
    chat = _Rendering(tokenizer, template, messages, add_generation_prompt)
    ids: list[int] = []
    for span in chat.spans(strict=False):
        ids += chat.encode(span.start, span.end)
    return tokenizer.with_bos(ids)


def encode_turns(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], train: Sequence[bool] | None = None
) -> EncodedTurns:
    """Ids of a conversation, and which are trained: each answer and its end-of-turn, never a header or another role.

    ``train``: one flag a message; an assistant's message with False is context only. The ids equal ``encode_chat``'s.
    When the template ends the last answer with no special token, the model's eos is added, and trained.
    Raises DataError for messages that are not a conversation, ModelFileError when the template fails or renders a turn
    in another way once later turns follow it.
    """
    chat = _Rendering(tokenizer, template, messages, add_generation_prompt=False)
    ids: list[int] = []
    trained: list[bool] = []
    for span in chat.spans(strict=True):
        wanted = span.message is not None and (train is None or train[span.message])
        end = chat.end_of_turn(span) if wanted else span.start
        for start, stop, flag in ((span.start, end, True), (end, span.end, False)):
            piece = chat.encode(start, stop)
            ids += piece
            trained += [flag] * len(piece)
        if wanted and span.message == len(messages) - 1 and not chat.has_special(span) and tokenizer.eos_id is not None:
            ids.append(tokenizer.eos_id)
            trained.append(True)
    whole = tokenizer.with_bos(ids)
    missing = len(whole) - len(ids)  # 1 when BOS was put before, negative when the template had written it twice
    trained = [False] * max(missing, 0) + trained[max(-missing, 0) :]
    return EncodedTurns(np.array(whole, np.int32), np.array(trained, np.bool_))


class _Rendering:
    """One conversation, rendered with stand-ins, and the offsets of its answers."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], add_generation_prompt: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        _check(messages)
        self._guard = _Guard(tokenizer, messages, template.source)
        self._messages = [self._guard.protect_message(message) for message in messages]
        self._prefixes: dict[tuple[int, bool], str] = {}
        self._text = self._prefix(len(self._messages), add_generation_prompt)

    def encode(self, start: int, end: int) -> list[int]:
        """Ids of a piece of the rendered text."""
        ids: list[int] = []
        position = start
        for found in self._tokenizer.special_pattern.finditer(self._text, start, end):
            ids += self._plain(position, found.start())
            string = found[0]
            ids.append(
                self._tokenizer.special_tokens[string if string in self._tokenizer.special_tokens else string.strip()]
            )
            position = found.end()
        return ids + self._plain(position, end)

    def spans(self, strict: bool) -> list[_Span]:
        """The text cut where answers begin and end. ``strict``: refuse a template that rewrites its past."""
        spans: list[_Span] = []
        position = 0
        for index, message in enumerate(self._messages):
            if message["role"] != "assistant":
                continue
            found = self._answer(index)
            if found is None or found[0] < position:
                if strict:
                    raise ModelFileError(
                        f"{self._template.name}: it renders message {index + 1} differently once others follow, so "
                        "what is trained of it cannot be told; give another chat template"
                    )
                continue
            spans += [_Span(position, found[0], None), _Span(*found, index)]
            position = found[1]
        return [*spans, _Span(position, len(self._text), None)]

    def end_of_turn(self, span: _Span) -> int:
        """Where the trained part of an answer ends: behind its last special token, else behind its text."""
        special = list(self._tokenizer.special_pattern.finditer(self._text, span.start, span.end))
        if special:
            return special[-1].end()
        return span.start + len(self._text[span.start : span.end].rstrip())

    def has_special(self, span: _Span) -> bool:
        """Whether the template writes a special token into an answer's turn."""
        return self._tokenizer.special_pattern.search(self._text, span.start, span.end) is not None

    def _answer(self, index: int) -> tuple[int, int] | None:
        """Offsets of the answer of message ``index`` with all that ends its turn, or None when they cannot be told."""
        before = self._prefix(index, True) if index else ""
        whole = self._prefix(index + 1, False)
        if not (self._text.startswith(before) and self._text.startswith(whole) and len(before) <= len(whole)):
            return None
        start = len(before)
        if index and before != self._prefix(index, False):
            return start, len(whole)
        # The template has no generation prompt: what stands before the content is a header, unless it is only space.
        content = self._content_offset(index)
        if content is None:
            return None
        return (content if self._text[start:content].strip() else start), len(whole)

    def _content_offset(self, index: int) -> int | None:
        """Where the content of message ``index`` begins: found with another content in its place."""
        marker = self._guard.unused
        swapped = self._render([*self._messages[:index], {**self._messages[index], "content": marker}], False)
        offset = swapped.find(marker)
        return offset if offset >= 0 and self._text.startswith(swapped[:offset]) else None

    def _prefix(self, count: int, add_generation_prompt: bool) -> str:
        """The text of the first ``count`` messages, rendered once."""
        key = (count, add_generation_prompt)
        if key not in self._prefixes:
            self._prefixes[key] = self._render(self._messages[:count], add_generation_prompt)
        return self._prefixes[key]

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        return self._template.render(messages, add_generation_prompt, self._tokenizer.named_tokens)

    def _plain(self, start: int, end: int) -> list[int]:
        if start >= end:
            return []
        text = self._guard.restore(self._text[start:end])
        return self._tokenizer.encode_rest(text) if start else self._tokenizer.encode(text, special=False)


class _Guard:
    """Swaps special tokens' strings in messages for stand-ins, and back."""

    def __init__(self, tokenizer: Tokenizer, messages: Sequence[Message], source: str) -> None:
        self._pattern = tokenizer.special_pattern
        used = set(source).union(*_strings_in(messages))
        free = (chr(code) for code in _MARKS if chr(code) not in used)
        self._mark, self.unused = next(free), next(free)
        self._strings: list[str] = []

    def protect_message(self, message: Message) -> dict[str, Any]:
        """A copy of a message in which no string but the role holds a special token's string."""
        return {key: value if key == "role" else self._protect(value) for key, value in message.items()}

    def restore(self, text: str) -> str:
        """``text`` with the stand-ins put back to what they stand for."""
        head, *rest = text.split(self._mark)
        # A template may cut a text in the middle of a stand-in: its half is then dropped.
        return head + "".join(self._strings[ord(part[0]) - _FIRST_INDEX] + part[1:] for part in rest if part)

    def _protect(self, value: Any) -> Any:
        if isinstance(value, str):
            check_unicode(value)
            return self._pattern.sub(lambda found: self._stand_in(found[0]), value)
        if isinstance(value, Mapping):
            return {key: self._protect(item) for key, item in cast("Mapping[str, Any]", value).items()}
        if isinstance(value, (list, tuple)):
            return [self._protect(item) for item in cast("Sequence[Any]", value)]
        return value

    def _stand_in(self, string: str) -> str:
        if string not in self._strings:
            self._strings.append(string)
        return self._mark + chr(_FIRST_INDEX + self._strings.index(string))


def _strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in cast("Mapping[str, Any]", value).values():
            yield from _strings_in(item)
    elif isinstance(value, (list, tuple)):
        for item in cast("Sequence[Any]", value):
            yield from _strings_in(item)


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise DataError("a conversation needs at least one message")
    for index, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise DataError(f"message {index + 1}: role is {role!r}, expected one of {', '.join(sorted(ROLES))}")
        if not isinstance(message.get("content"), str):
            raise DataError(f"message {index + 1}: content is {type(message.get('content')).__name__}, expected text")
