"""Multiple choice by log-likelihood: which answer the model finds likeliest, whatever it would say by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tritune.data import AlpacaRow, CompletionRow, Example, RowEncoder
from tritune.data.examples import fit
from tritune.errors import DataError
from tritune.evaluation.questions import Question
from tritune.evaluation.scorer import Score
from tritune.evaluation.tasks import Metrics, accuracy
from tritune.text import ChatTemplate, Tokenizer


@dataclass(frozen=True)
class Choices:
    """Questions, each with an example a choice. acc and acc_norm as lm-evaluation-harness has them."""

    questions: Sequence[Question]
    answers: Sequence[Sequence[Example]]
    notes: tuple[str, ...] = ()
    name: str = "choices"
    unit: str = "questions"

    @classmethod
    def of(
        cls, questions: Sequence[Question], tokenizer: Tokenizer, template: ChatTemplate, max_length: int, chat: bool
    ) -> Choices:
        """The examples of questions, each at most max_length tokens: longer ones are cut from the left of the question.

        chat: ask in the chat template, else as ``Question: …\\nAnswer:``. Whole instructions are put as training
        puts them. Raises DataError when no question has room for its answers.
        """
        encoder = RowEncoder(tokenizer, template, max_length, "chat" if chat else "auto")
        kept: list[Question] = []
        answers: list[list[Example]] = []
        for question in questions:
            examples = [_encode(question, choice, encoder, chat) for choice in question.choices]
            whole = [example for example in examples if example is not None]
            if len(whole) == len(examples):
                kept.append(question)
                answers.append(whole)
        if not kept:
            raise DataError(f"none of {len(questions)} questions can be asked: an answer is over {max_length} tokens")
        lost = len(questions) - len(kept)
        notes = (f"{lost} questions were left out: an answer of theirs does not fit {max_length} tokens",)
        return cls(kept, answers, notes if lost else ())

    @property
    def count(self) -> int:
        """Number of questions."""
        return len(self.questions)

    def examples(self) -> Iterator[Example]:
        """Choice after choice, question after question."""
        for examples in self.answers:
            yield from examples

    def metrics(self, scores: Iterable[Score]) -> Metrics:
        """acc: the right choice has the highest log-likelihood; acc_norm: per character of the choice; with the
        standard errors of these means."""
        remaining = iter(scores)
        right: list[tuple[bool, bool]] = []
        for question in self.questions:
            found = [score.log_likelihood for score in islice(remaining, len(question.choices))]
            per_character = [value / len(choice) for value, choice in zip(found, question.choices, strict=True)]
            right.append((best(found) == question.answer, best(per_character) == question.answer))
        acc, acc_norm = zip(*right, strict=True)
        return accuracy("acc", acc) | accuracy("acc_norm", acc_norm)


def best(values: Sequence[float]) -> int | None:
    """The number of the highest value; none where one is not a number, which is no answer."""
    return None if any(map(math.isnan, values)) else int(np.argmax(values))


def _encode(question: Question, choice: str, encoder: RowEncoder, chat: bool) -> Example | None:
    """A question with one of its answers, which is marked; in a chat template with the end of its turn.

    None when the answer does not fit.
    """
    if chat or question.instruction:
        row = (
            AlpacaRow(question.question, "", choice, question.line)
            if question.instruction
            else CompletionRow(question.question, choice, question.line)
        )
        items = encoder.encode(row).items
        return items[0] if items and isinstance(items[0], Example) else None
    context = f"Question: {question.question}\nAnswer:"
    whole = encode_pair(encoder.tokenizer, context, f" {choice}", question.line)
    return fit(whole, encoder.max_seq_len, encoder.tokenizer.bos_id)


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str, line: int = 0) -> Example:
    """The tokens of both texts together, BOS first if the model wants it; those of the continuation are marked.

    As in lm-evaluation-harness, spaces at the end of the context count to the continuation, and the continuation's
    tokens are those behind as many as the context alone has. Special tokens' strings are plain text.
    """
    whole = tokenizer.with_bos(tokenizer.encode(context + continuation, special=False))
    before = len(tokenizer.with_bos(tokenizer.encode(context.rstrip(), special=False)))
    return Example(np.array(whole, np.int32), np.arange(len(whole)) >= before, line)
