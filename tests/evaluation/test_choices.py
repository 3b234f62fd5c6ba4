"""Multiple choice: the choice with the highest log-likelihood of its tokens is the answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tiny_chat import strong_adapter
from tritune import DataError, Model, evaluate
from tritune.data import Example
from tritune.evaluation.choices import Choices, encode_pair
from tritune.evaluation.measure import read_questions
from tritune.evaluation.scorer import Score

QUESTIONS: list[dict[str, Any]] = [
    {"question": f"How are you, number {n}?", "choices": ["fine", "I am not fine, thank you", "story"], "answer": n % 3}
    for n in range(6)
]


def log_likelihood(model: Model, context: list[int], continuation: list[int]) -> float:
    logits = model.logits([*context, *continuation]).astype(np.float64)[len(context) - 1 : -1]
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return float(logp[np.arange(len(continuation)), continuation].sum())


def accuracies(model: Model, encode: Any) -> tuple[float, float]:
    right = []
    for row in QUESTIONS:
        found = [log_likelihood(model, *encode(row["question"], choice)) for choice in row["choices"]]
        normed = [value / len(choice) for value, choice in zip(found, row["choices"], strict=True)]
        right.append([int(np.argmax(found)) == row["answer"], int(np.argmax(normed)) == row["answer"]])
    acc, acc_norm = np.mean(right, axis=0).tolist()
    return acc, acc_norm


def test_plain_questions(numpy_model: Model) -> None:
    tokenizer = numpy_model.tokenizer

    def encode(question: str, choice: str) -> tuple[list[int], list[int]]:
        context = tokenizer.encode(f"Question: {question}\nAnswer:", special=False)
        whole = tokenizer.encode(f"Question: {question}\nAnswer: {choice}", special=False)
        assert whole[: len(context)] == context
        return context, whole[len(context) :]

    found = evaluate(numpy_model, QUESTIONS)
    assert (found.task, found.count, found.unit) == ("choices", 6, "questions")
    metrics = found.results["base"]
    assert (metrics["acc"], metrics["acc_norm"]) == accuracies(numpy_model, encode)
    assert metrics["acc_stderr"] == pytest.approx(math.sqrt(metrics["acc"] * (1 - metrics["acc"]) / 5))


def test_questions_in_the_chat_template(numpy_model: Model) -> None:
    def encode(question: str, choice: str) -> tuple[list[int], list[int]]:
        context = numpy_model.encode_prompt(question)
        return context, [*numpy_model.tokenizer.encode(choice, special=False), *numpy_model.tokenizer.end_ids[:1]]

    metrics = evaluate(numpy_model, QUESTIONS, chat=True).results["base"]
    assert (metrics["acc"], metrics["acc_norm"]) == accuracies(numpy_model, encode)


def test_adapters_beside_the_base(numpy_model: Model) -> None:
    adapters = {"base": None, "one": strong_adapter(numpy_model, 1, 0.5), "two": strong_adapter(numpy_model, 2, 0.5)}
    together = evaluate(numpy_model, QUESTIONS, adapters)
    assert list(together.results) == ["base", "one", "two"]
    for name, adapter in adapters.items():
        assert evaluate(numpy_model, QUESTIONS, {name: adapter}).results[name] == together.results[name]


def test_spaces_at_the_end_of_a_context_belong_to_the_continuation(numpy_model: Model) -> None:
    tokenizer = numpy_model.tokenizer
    one, other = encode_pair(tokenizer, "hello there ", "cats"), encode_pair(tokenizer, "hello there", " cats")
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.trained, other.trained)
    assert tokenizer.decode(one.tokens[one.trained].tolist()) == " cats"


def test_long_questions_are_cut_from_the_left_and_long_answers_left_out(numpy_model: Model) -> None:
    rows = [
        {"question": "hello there " * 40, "choices": ["fine", "story"], "answer": 0},
        {"question": "hello", "choices": ["fine", "story " * 40], "answer": 0},
        {"question": "hello", "choices": ["fine", "story"], "answer": 0},
    ]
    task = Choices.of(read_questions(rows), numpy_model.tokenizer, numpy_model.template, 40, False)
    assert task.count == 2
    assert task.notes == ("1 questions were left out: an answer of theirs does not fit 40 tokens",)
    assert max(map(len, task.examples())) == 40
    answers = [numpy_model.tokenizer.decode(item.tokens[item.trained].tolist()) for item in task.examples()]
    assert answers == [" fine", " story"] * 2
    with pytest.raises(DataError, match="none of 1 questions"):
        Choices.of(read_questions(rows[1:2]), numpy_model.tokenizer, numpy_model.template, 40, False)


def test_a_score_that_is_not_a_number_is_no_right_answer() -> None:
    """argmax finds NaN the largest."""
    one = Example(np.zeros(2, np.int32), np.ones(2, np.bool_))
    task = Choices(read_questions(QUESTIONS[:1]), [[one] * 3])
    values = [math.nan, 1.0, 2.0]
    metrics = task.metrics([Score(np.array([value], np.float32), None) for value in values])
    assert metrics["acc"] == metrics["acc_norm"] == 0


def test_a_bad_row_is_named_by_its_line(tmp_path: Any) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '{"question": "a", "choices": ["b", "c"], "answer": 0}\n\n{"question": "a", "choices": ["b", "c"]}\n'
    )
    with pytest.raises(DataError, match=r"questions.jsonl: line 3: no 'answer'"):
        read_questions(path)
