"""Rows of multiple-choice questions: what a file may hold, and the question that a row asks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tritune.data.fields import BadRow, describe, text_of
from tritune.formats.fields import short

_ANSWER_FORMAT = re.compile(r"\bAnswer format: *(\S+(?:/\S+)+)\s*$")


@dataclass(frozen=True)
class Question:
    """A question, its choices and the number of the right one. ``instruction``: the question is a whole prompt that
    says how to answer, and the choices are whole answers."""

    question: str
    choices: tuple[str, ...]
    answer: int
    instruction: bool = False
    line: int = 0


def is_question(row: Mapping[str, Any]) -> bool:
    """Whether a row's keys are those of a multiple-choice question."""
    return ("question" in row and "choices" in row) or _is_instruction(row)


def parse_question(row: Mapping[str, Any], line: int = 0) -> Question:
    """The question of a row: ``{question, choices, answer}`` with a list of choices and the right one by number (from
    0), letter or text; ARC's ``{question, choices: {text, label}, answerKey}``; or LLM-Adapters' ``{instruction,
    output, answer}`` whose instruction ends in ``Answer format: answer1/answer2``. Raises BadRow.
    """
    if _is_instruction(row):
        return _instruction(row, line)
    question = text_of(row, "question")
    if "choices" not in row:
        raise BadRow("no 'choices'")
    given: Any = row["choices"]
    labels: tuple[str, ...] | None = None
    if isinstance(given, Mapping):
        columns = cast("Mapping[str, Any]", given)
        given, labels = columns.get("text"), _texts(columns.get("label"), "'label' of 'choices'")
    choices = _texts(given, "'choices'")
    if len(choices) < 2:
        raise BadRow(f"'choices' has {len(choices)} entries, expected at least 2")
    if labels is not None and len(labels) != len(choices):
        raise BadRow(f"'choices' has {len(choices)} texts and {len(labels)} labels")
    key = "answerKey" if "answerKey" in row and "answer" not in row else "answer"
    if key not in row:
        raise BadRow("no 'answer'")
    return Question(question, choices, _answer(row[key], key, choices, labels), line=line)


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BadRow(f"{what} is {describe(value)}, expected a list of texts")
    items = cast("list[Any]", value)
    for item in items:
        if not isinstance(item, str) or not item:
            raise BadRow(f"{what} holds {'empty text' if item == '' else describe(item)}, expected texts")
    return tuple(text_of({"text": item}, "text") for item in items)


def _answer(value: Any, key: str, choices: Sequence[str], labels: Sequence[str] | None) -> int:
    """The number of the right choice."""
    if isinstance(value, int) and not isinstance(value, bool) and labels is None:
        if not 0 <= value < len(choices):
            raise BadRow(f"'{key}' is {value}, expected 0 … {len(choices) - 1}")
        return value
    if not isinstance(value, str):
        raise BadRow(f"'{key}' is {describe(value)}, expected {'a label' if labels else 'a number, letter or text'}")
    letters = labels or [chr(ord("A") + number) for number in range(len(choices))]
    for names in (letters,) if labels else (choices, letters):
        if value in names:
            return list(names).index(value)
    raise BadRow(f"'{key}' is {short(value)}, which is none of the choices")


def _is_instruction(row: Mapping[str, Any]) -> bool:
    instruction = row.get("instruction")
    if not ("answer" in row and "output" in row and isinstance(instruction, str)):
        return False
    return _ANSWER_FORMAT.search(instruction) is not None


def _instruction(row: Mapping[str, Any], line: int) -> Question:
    instruction, output, answer = (text_of(row, key) for key in ("instruction", "output", "answer"))
    found = _ANSWER_FORMAT.search(instruction)
    assert found is not None
    options = found[1].split("/")
    if answer not in options:
        raise BadRow(f"'answer' is {short(answer)}, expected one of {found[1]}")
    if output.count(answer) != 1:
        raise BadRow(f"'output' says the answer {output.count(answer)} times, expected once")
    choices = tuple(output.replace(answer, option) for option in options)
    return Question(instruction, choices, options.index(answer), instruction=True, line=line)
