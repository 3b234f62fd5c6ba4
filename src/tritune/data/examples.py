"""What is trained on: sequences of token ids, each with the flags of which of them are targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tritune.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Example:
    """One sequence to train on. ``tokens`` int32 [T]; ``trained`` bool [T]: it is a target; ``line`` of its row."""

    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]
    line: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sequences(self) -> tuple[Example, ...]:
        """The sequences that go into a batch together: this one."""
        return (self,)

    @property
    def num_trained(self) -> int:
        """Number of targets: the first token of a sequence is predicted from nothing and never is one."""
        return int(np.count_nonzero(self.trained[1:]))


@dataclass(frozen=True)
class PreferenceExample:
    """A pair of answers to one prompt: both begin with the same tokens, of which none is a target."""

    chosen: Example
    rejected: Example

    def __len__(self) -> int:
        return len(self.chosen) + len(self.rejected)

    @property
    def sequences(self) -> tuple[Example, ...]:
        """The sequences that go into a batch together: chosen, then rejected."""
        return (self.chosen, self.rejected)

    @property
    def line(self) -> int:
        """Line of its row."""
        return self.chosen.line


Item = Example | PreferenceExample
"""What a row becomes: a sequence, or a pair of them that stays together."""


def fit(example: Example, max_seq_len: int, bos_id: int | None) -> Example | None:
    """``example`` cut from the left of its prompt (BOS stays) to ``max_seq_len``; None when its targets do not fit."""
    return cut_prompt(example, max(len(example) - max_seq_len, 0), bos_id)


def fit_pair(pair: PreferenceExample, max_seq_len: int, bos_id: int | None) -> PreferenceExample | None:
    """Both answers with the same tokens cut from the left of their prompt; None when the longer one does not fit."""
    excess = max(max(len(example) for example in pair.sequences) - max_seq_len, 0)
    chosen, rejected = (cut_prompt(example, excess, bos_id) for example in pair.sequences)
    if chosen is None or rejected is None:
        return None
    return pair if not excess else PreferenceExample(chosen, rejected)


def cut_prompt(example: Example, excess: int, bos_id: int | None) -> Example | None:
    """``example`` without ``excess`` tokens of its prompt; None when it has no target, or no such prompt."""
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


def without_tail(example: Example) -> Example:
    """``example`` up to its last target (templates put a line break after the end of a turn)."""
    end = len(example) - int(np.argmax(example.trained[::-1])) if example.num_trained else len(example)
    return Example(example.tokens[:end], example.trained[:end], example.line)


def windows(example: Example, max_seq_len: int, bos_id: int | None) -> list[Example]:
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


def show_example(example: Item, tokenizer: Tokenizer, mark: Callable[[str], str] = "[{}]".format) -> str:
    """The text of an example, special tokens too, each trained run put through ``mark``; of a pair, the chosen one."""
    parts: list[str] = []
    shown = example.sequences[0]
    for trained, run in groupby(
        zip(shown.trained.tolist(), shown.tokens.tolist(), strict=True), key=lambda pair: pair[0]
    ):
        text = tokenizer.decode((token for _, token in run), skip_special=False)
        parts.append(mark(text) if trained else text)
    return "".join(parts)
