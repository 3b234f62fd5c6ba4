"""Preference rows: a prompt, an answer that is better and one that is worse.

What is found in the wild: TRL's standard form (three texts) and its conversational ones (the prompt as messages, or
inside of chosen and rejected), LLaMA-Factory's (``conversations``; ``instruction``, ``input``), Orca's (``system``,
``question``), and Anthropic's transcripts ("\\n\\nHuman: … \\n\\nAssistant: …").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from tritune.data.fields import BadRow, describe, optional_text, text_of
from tritune.data.messages import Turn, Turns, context_only, has_answer, parse_turn, parse_turns, with_columns

_SPEAKER = re.compile(r"\n\n(Human|Assistant):[ ]?")


@dataclass(frozen=True)
class PreferenceRow:
    """``{prompt, chosen, rejected}``: turns of a conversation, or three plain texts."""

    keys: ClassVar[tuple[tuple[str, ...], ...]] = (("chosen",), ("rejected",))
    prompt: Turns | str
    chosen: Turns | str
    rejected: Turns | str
    line: int = 0

    @staticmethod
    def parse(row: Mapping[str, Any], line: int) -> PreferenceRow:
        """Raises BadRow."""
        for key in ("chosen", "rejected"):
            if row.get(key) is None:
                raise BadRow(f"no '{key}'" if key not in row else f"'{key}' is null, expected text or messages")
        if isinstance(row.get("prompt"), str) and all(isinstance(row[key], str) for key in ("chosen", "rejected")):
            texts = [text_of(row, key) for key in ("prompt", "chosen", "rejected")]
            if not row.get("system"):
                return PreferenceRow(texts[0], texts[1], texts[2], line)
        prompt = _prompt(row)
        before, chosen = _answer(row, "chosen", prompt)
        other, rejected = _answer(row, "rejected", prompt)
        if before != other:
            raise BadRow("'chosen' and 'rejected' answer different prompts")
        if not (has_answer(chosen) and has_answer(rejected)):
            raise BadRow("no answer of the assistant to learn in 'chosen' or in 'rejected'")
        return PreferenceRow(with_columns(context_only(before), row), chosen, rejected, line)


def _prompt(row: Mapping[str, Any]) -> Turns:
    """The turns before the answers, as the row says them apart from the answers; none when it does not."""
    for key in ("conversations", "messages", "prompt"):
        if isinstance(row.get(key), list):
            return parse_turns(row[key], key)
    for key in ("prompt", "question"):
        if row.get(key) is not None:
            return (Turn("user", text_of(row, key)),)
    if row.get("instruction") is not None:
        given = optional_text(row, "input")
        question = text_of(row, "instruction")
        return (Turn("user", f"{question}\n\n{given}" if given else question),)
    return ()


def _answer(row: Mapping[str, Any], key: str, prompt: Turns) -> tuple[Turns, Turns]:
    """(the prompt, the answer) of one side: its value may be the answer alone, or the conversation with it."""
    value = row[key]
    if isinstance(value, Mapping):
        return prompt, (parse_turn(cast("Mapping[str, Any]", value)),)
    if isinstance(value, list):
        turns = parse_turns(cast("list[Any]", value), key)
        if turns and turns[0].role == "assistant":
            return prompt, turns
    elif isinstance(value, str):
        if prompt:
            return prompt, (Turn("assistant", text_of(row, key)),)
        turns = _transcript(text_of(row, key))
        if not turns:
            raise BadRow(f"no 'prompt', and '{key}' is no conversation with one")
    else:
        raise BadRow(f"'{key}' is {describe(value)}, expected text or messages")
    # The whole conversation: the answer is what the assistant says in the end. A prompt beside it repeats it.
    end = len(turns)
    while end and turns[end - 1].role == "assistant":
        end -= 1
    return turns[:end], turns[end:]


def _transcript(text: str) -> Turns:
    """Turns of ``\\n\\nHuman: … \\n\\nAssistant: …``; none when the text does not begin so."""
    if not _SPEAKER.match(text):
        return ()
    parts = _SPEAKER.split(text)[1:]
    roles = {"Human": "user", "Assistant": "assistant"}
    return tuple(Turn(roles[name], said.strip()) for name, said in zip(parts[::2], parts[1::2], strict=True))
