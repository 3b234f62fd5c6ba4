"""Lists of messages, as found in the wild: OpenAI's ``role`` / ``content`` and ShareGPT's ``from`` / ``value``.

Tools stay text: definitions are put behind the system message, calls behind the answer that makes them, results are
messages of the role ``tool``. A template thus needs to know nothing about tools, and what is trained can be read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tritune.data.fields import BadRow, describe, text_of

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
}
"""The role of a turn by the name that files give it (LLaMA-Factory, axolotl, TRL, OpenAI)."""


@dataclass(frozen=True)
class Turn:
    """One message of a conversation. ``trained``: an assistant's answer that is learnt (others never are)."""

    role: str
    content: str
    trained: bool = True


Turns = tuple[Turn, ...]


def parse_turns(value: Any, name: str) -> Turns:
    """The turns of a list of messages that stands under ``name``. Raises BadRow."""
    if not isinstance(value, list):
        raise BadRow(f"'{name}' is {describe(value)}, expected a list")
    return tuple(parse_turn(message) for message in cast("list[Any]", value))


def parse_turn(message: Any) -> Turn:
    """One message, of either kind. Raises BadRow."""
    if not isinstance(message, Mapping):
        raise BadRow(f"a message is {describe(message)}, expected an object with role and content")
    fields = cast("Mapping[str, Any]", message)
    is_sharegpt = "from" in fields and "role" not in fields
    name = text_of(fields, "from" if is_sharegpt else "role")
    role = ROLES.get(name)
    if role is None:
        raise BadRow(f"a message has the role {name[:40]!r}, expected system, user, assistant or tool")
    calls = fields.get("tool_calls")
    return Turn(role, _content(fields, "value" if is_sharegpt else "content", calls), trained=_is_trained(fields))


def with_system(turns: Turns, system: str) -> Turns:
    """``turns`` beginning with a system message: the text is put before what an existing one says."""
    if not system:
        return turns
    if turns and turns[0].role == "system":
        return (replace(turns[0], content=f"{system}\n\n{turns[0].content}"), *turns[1:])
    return (Turn("system", system), *turns)


def with_columns(turns: Turns, row: Mapping[str, Any]) -> Turns:
    """``turns`` with what the row says beside them: its columns ``system`` and ``tools``. Raises BadRow."""
    system = row.get("system")
    tools = row.get("tools")
    text = "" if system is None else text_of(row, "system")
    turns = with_system(turns, text)
    if not tools:
        return turns
    described = text_of(row, "tools") if isinstance(tools, str) else json.dumps(tools, ensure_ascii=False)
    if turns and turns[0].role == "system":
        return (replace(turns[0], content=f"{turns[0].content}\n\n{described}"), *turns[1:])
    return (Turn("system", described), *turns)


def context_only(turns: Sequence[Turn]) -> Turns:
    """``turns`` of which nothing is learnt."""
    return tuple(replace(turn, trained=False) for turn in turns)


def has_answer(turns: Sequence[Turn]) -> bool:
    """Whether there is an answer of the assistant to learn."""
    return any(turn.role == "assistant" and turn.trained for turn in turns)


def _content(fields: Mapping[str, Any], key: str, calls: Any) -> str:
    if isinstance(fields.get(key), list):
        content = "".join(_text_part(part) for part in cast("list[Any]", fields[key]))
    elif calls and fields.get(key) is None:
        content = ""
    else:
        content = text_of(fields, key)
    if not calls:
        return content
    if not isinstance(calls, list):
        raise BadRow(f"'tool_calls' is {describe(calls)}, expected a list")
    written = [_call_text(call) for call in cast("list[Any]", calls)]
    return "\n".join([*([content] if content else []), *written])


def _call_text(call: Any) -> str:
    """A call as Hermes, Qwen and others write it: JSON between <tool_call> tags."""
    if not isinstance(call, Mapping):
        raise BadRow(f"a tool call is {describe(call)}, expected an object")
    function: Any = cast("Mapping[str, Any]", call).get("function", call)
    if not isinstance(function, Mapping):
        raise BadRow(f"a tool call's 'function' is {describe(function)}, expected an object")
    fields = cast("Mapping[str, Any]", function)
    arguments = fields.get("arguments", {})
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # what is not JSON stays the text that it is
            arguments = json.loads(arguments)
    written = json.dumps({"name": text_of(fields, "name"), "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def _text_part(part: Any) -> str:
    """One part of a content that is a list: ``{"type": "text", "text": …}``, in some files ``"value"``."""
    fields = cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {}
    if fields.get("type") != "text":
        raise BadRow("a message's content has a part that is not text")
    return text_of(fields, "value" if "value" in fields else "text")


def _is_trained(message: Mapping[str, Any]) -> bool:
    """``weight`` (or ``loss_weight``) 0 marks an answer that is context only."""
    for key in ("weight", "loss_weight"):
        if message.get(key) is not None:
            weight = message[key]
            if weight not in (0, 1):
                raise BadRow(f"'{key}' is {weight!r}, expected 0 or 1")
            return bool(weight)
    return True
