"""Rows of questions: the shapes that are read, and what is said of those that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from tritune.data.fields import BadRow
from tritune.evaluation.questions import Question, is_question, parse_question

PLAIN = {"question": "2 + 2?", "choices": ["3", "4", "5"]}
ADAPTERS = {
    "instruction": "Choose: sky?\n\nAnswer1: blue Answer2: red\n\nAnswer format: answer1/answer2",
    "input": "",
    "output": "the correct answer is answer1",
    "answer": "answer1",
}


@pytest.mark.parametrize("answer", [1, "B", "4"])
def test_the_answer_by_number_letter_or_text(answer: int | str) -> None:
    assert parse_question({**PLAIN, "answer": answer}, 7) == Question("2 + 2?", ("3", "4", "5"), 1, line=7)


def test_arc() -> None:
    choices = {"text": ["red", "blue", "green"], "label": ["1", "2", "3"]}
    row = {"question": "Sky?", "choices": choices, "answerKey": "2"}
    assert is_question(row)
    assert parse_question(row) == Question("Sky?", ("red", "blue", "green"), 1)


def test_llm_adapters() -> None:
    assert is_question(ADAPTERS)
    found = parse_question(ADAPTERS)
    assert found.choices == ("the correct answer is answer1", "the correct answer is answer2")
    assert (found.answer, found.instruction, found.question) == (0, True, ADAPTERS["instruction"])


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "Add.", "output": "4"},
        {"instruction": "Add.", "output": "4", "answer": "4"},
        {"prompt": "a", "completion": "b"},
        {"question": "a", "answer": "b"},
    ],
)
def test_other_rows_are_no_questions(row: dict[str, Any]) -> None:
    assert not is_question(row)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "no 'answer'"),
        ({"answer": 3}, "'answer' is 3, expected 0 … 2"),
        ({"answer": -1}, "expected 0 … 2"),
        ({"answer": "D"}, "none of the choices"),
        ({"answer": True}, "a truth value"),
        ({"answer": None}, "null"),
        ({"answer": 1.5}, "a number"),
        ({"answer": 0, "choices": ["a"]}, "at least 2"),
        ({"answer": 0, "choices": "ab"}, "'choices' is text, expected a list"),
        ({"answer": 0, "choices": ["a", ""]}, "empty text"),
        ({"answer": 0, "choices": ["a", 4]}, "a number"),
        ({"answer": 0, "choices": ["a", "\ud800"]}, "surrogate"),
        ({"answer": 0, "question": 4}, "'question' is a number"),
        ({"answerKey": "A", "choices": {"text": ["a", "b"], "label": ["A"]}}, "2 texts and 1 labels"),
        ({"answerKey": "C", "choices": {"text": ["a", "b"], "label": ["A", "B"]}}, "none of the choices"),
        ({"answerKey": 0, "choices": {"text": ["a", "b"], "label": ["A", "B"]}}, "expected a label"),
        ({"answerKey": "A", "choices": {"text": ["a", "b"]}}, "'label' of 'choices' is null"),
    ],
)
def test_rows_that_cannot_be(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        parse_question(PLAIN | change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"answer": "answer3"}, "expected one of answer1/answer2"), ({"output": "answer1, answer1"}, "2 times")],
)
def test_instructions_that_cannot_be(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        parse_question(ADAPTERS | change)
