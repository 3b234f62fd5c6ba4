"""Rows to examples: token ids, and which of them are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tritune.data.rows import AlpacaRow, ChatRow, CompletionRow, Row, TextRow
from tritune.errors import ConfigError, DataError
from tritune.text.template import ChatTemplate
from tritune.text.tokenizer import Tokenizer
from tritune.text.turns import encode_turns

PromptStyle = Literal["auto", "chat", "alpaca"]

# The two prompts of Stanford Alpaca, with and without an input.
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
ALPACA_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)


@dataclass(frozen=True)
class Example:
    """One sequence to train on. ``tokens`` int32 [T]; ``trained`` bool [T]: it is a target; ``line`` of its row."""

    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]
    line: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_trained(self) -> int:
        """Number of targets: the first token of a sequence is predicted from nothing and never is one."""
        return int(np.count_nonzero(self.trained[1:]))


@dataclass(frozen=True)
class ExampleSet:
    """The examples of a file, and what did not go into them as it was."""

    examples: list[Example]
    shortened: int
    """Rows whose prompt was cut from the left to fit."""
    dropped: int
    """Rows whose answer alone does not fit, or that have nothing to train."""
    first_dropped_line: int = 0

    def notes(self, max_seq_len: int) -> list[str]:
        """Sentences for the user about what was cut and dropped; empty when nothing was."""
        notes: list[str] = []
        if self.shortened:
            notes.append(f"{self.shortened} rows were cut from the left of the prompt to fit {max_seq_len} tokens")
        if self.dropped:
            where = f" (first at line {self.first_dropped_line})" if self.first_dropped_line else ""
            notes.append(f"{self.dropped} rows were left out: their answer does not fit {max_seq_len} tokens{where}")
        return notes


def build_examples(
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    template: ChatTemplate,
    max_seq_len: int,
    prompt_style: PromptStyle = "auto",
) -> ExampleSet:
    """Examples of ``rows``, each at most ``max_seq_len`` tokens, in the same order.

    ``prompt_style`` says what becomes of Alpaca rows: ``chat`` a user turn and an answer in the model's template,
    ``alpaca`` the classic prompt as plain text, ``auto`` the former unless the template is only a stand-in.
    What follows the last target of a sequence is left out: no loss depends on it.
    Raises DataError when no example is left, ConfigError when ``max_seq_len`` is below 2.
    """
    if max_seq_len < 2:
        raise ConfigError(f"max_seq_len: expected at least 2 (one token to see, one to learn), found {max_seq_len}")
    style = ("alpaca" if template.is_fallback else "chat") if prompt_style == "auto" else prompt_style
    examples: list[Example] = []
    shortened, dropped_lines = 0, list[int]()
    for row in rows:
        encoded = _encode_row(row, tokenizer, template, style)
        if isinstance(row, TextRow):
            examples += _windows(encoded, max_seq_len, tokenizer.bos_id)
            continue
        encoded = _without_tail(encoded)
        fitted = fit(encoded, max_seq_len, tokenizer.bos_id)
        if fitted is None:
            dropped_lines.append(row.line)
            continue
        shortened += fitted is not encoded
        examples.append(fitted)
    if not examples:
        raise DataError(f"none of {len(rows)} rows can be trained: no answer fits max_seq_len {max_seq_len}")
    return ExampleSet(examples, shortened, len(dropped_lines), dropped_lines[0] if dropped_lines else 0)


def fit(example: Example, max_seq_len: int, bos_id: int | None) -> Example | None:
    """``example`` cut from the left of its prompt (BOS stays) to ``max_seq_len``; None when its targets do not fit."""
    excess = len(example) - max_seq_len
    if not example.num_trained:
        return None
    if excess <= 0:
        return example
    keep = 1 if bos_id is not None and example.tokens[0] == bos_id else 0
    first_target = 1 + int(np.argmax(example.trained[1:]))
    # The first target needs a token before it: BOS, or the last of the prompt.
    if keep + excess + (0 if keep else 1) > first_target:
        return None
    kept = np.r_[0:keep, keep + excess : len(example)]
    return Example(example.tokens[kept], example.trained[kept], example.line)


def show_example(example: Example, tokenizer: Tokenizer, mark: Callable[[str], str] = "[{}]".format) -> str:
    """The text of an example, special tokens too, each trained run put through ``mark``."""
    parts: list[str] = []
    for trained, run in groupby(
        zip(example.trained.tolist(), example.tokens.tolist(), strict=True), key=lambda pair: pair[0]
    ):
        text = tokenizer.decode((token for _, token in run), skip_special=False)
        parts.append(mark(text) if trained else text)
    return "".join(parts)


def alpaca_prompt(instruction: str, given: str = "") -> str:
    """The classic prompt of Stanford Alpaca."""
    prompt = ALPACA_WITH_INPUT if given else ALPACA_WITHOUT_INPUT
    return prompt.replace("{input}", "\0").replace("{instruction}", instruction).replace("\0", given)


def _encode_row(row: Row, tokenizer: Tokenizer, template: ChatTemplate, style: str) -> Example:
    if isinstance(row, AlpacaRow):
        if style == "alpaca":
            return _encode_plain(alpaca_prompt(row.instruction, row.input), row.output, tokenizer, row.line)
        question = f"{row.instruction}\n\n{row.input}" if row.input else row.instruction
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": row.output}]
        encoded = encode_turns(tokenizer, template, messages)
        return Example(encoded.tokens, encoded.trained, row.line)
    if isinstance(row, ChatRow):
        messages = [{"role": turn.role, "content": turn.content} for turn in row.turns]
        encoded = encode_turns(tokenizer, template, messages, [turn.trained for turn in row.turns])
        return Example(encoded.tokens, encoded.trained, row.line)
    if isinstance(row, CompletionRow):
        return _encode_plain(row.prompt, row.completion, tokenizer, row.line)
    return _encode_plain("", row.text, tokenizer, row.line)


def _encode_plain(prompt: str, completion: str, tokenizer: Tokenizer, line: int) -> Example:
    """BOS if the model wants it, the prompt; then, trained and encoded apart (as generated), completion and eos."""
    before = tokenizer.with_bos(tokenizer.encode(prompt, special=False))
    after = tokenizer.encode_rest(completion) if prompt else tokenizer.encode(completion, special=False)
    after += [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    tokens = np.array(before + after, np.int32)
    return Example(tokens, np.arange(len(tokens)) >= len(before), line)


def _without_tail(example: Example) -> Example:
    """``example`` up to its last target (templates put a line break after the end of a turn)."""
    end = len(example) - int(np.argmax(example.trained[::-1])) if example.num_trained else len(example)
    return Example(example.tokens[:end], example.trained[:end], example.line)


def _windows(example: Example, max_seq_len: int, bos_id: int | None) -> list[Example]:
    """A text cut into pieces of at most ``max_seq_len`` tokens.

    With BOS every piece begins with it; without, a piece begins with the last token of the one before. So each token
    but the first of the text is a target once.
    """
    has_bos = bos_id is not None and len(example) > 0 and example.tokens[0] == bos_id
    pieces: list[Example] = []
    start = 1
    while start < len(example):
        stop = min(start + max_seq_len - 1, len(example))
        head = 0 if has_bos else start - 1
        kept = np.r_[head, start:stop]
        trained = np.arange(len(kept)) > 0
        pieces.append(Example(example.tokens[kept], trained, example.line))
        start = stop
    return pieces
