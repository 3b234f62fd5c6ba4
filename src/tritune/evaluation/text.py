"""Perplexity of a text with a sliding window.

Source: the recipe "Perplexity of fixed-length models" of transformers' documentation. Each window of ``max_length``
tokens begins ``stride`` after the one before, and scores only what that one did not see; so each token but the first
is scored once, with at least ``max_length - stride`` tokens before it where the text has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tritune.data import Example
from tritune.errors import ConfigError, DataError
from tritune.evaluation.scorer import Score
from tritune.evaluation.tasks import LossSum, Metrics
from tritune.text import Tokenizer


@dataclass(frozen=True)
class Perplexity:
    """Windows over a text. ``tokens`` int32 [T]; ``num_bytes`` of the text that they spell."""

    tokens: NDArray[np.int32]
    max_length: int
    stride: int
    num_bytes: int
    name: str = "perplexity"
    unit: str = "windows"
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, text: str, tokenizer: Tokenizer, max_length: int, stride: int | None = None, limit: int | None = None
    ) -> Perplexity:
        """Windows of at most max_length tokens over a text; stride None: half of it. limit: most windows.

        Raises ConfigError for a stride or length that cannot be, DataError for a text without two tokens.
        """
        stride = max(1, max_length // 2) if stride is None else stride
        if max_length < 2:
            raise ConfigError(f"max_length: expected at least 2 (one token to see, one to predict), found {max_length}")
        if not 1 <= stride <= max_length:
            raise ConfigError(
                f"stride: expected 1 … {max_length} (max_length), found {stride}, which would leave tokens out"
            )
        ids = tokenizer.encode_prompt(text, special=False)
        kept = ids if limit is None else ids[: max_length + (limit - 1) * stride]
        if len(kept) < 2:
            raise DataError(f"a text of {len(kept)} tokens has no perplexity: expected at least 2")
        whole = text if len(kept) == len(ids) else tokenizer.decode(kept)
        return cls(np.array(kept, np.int32), max_length, stride, len(whole.encode()))

    @property
    def count(self) -> int:
        """Number of windows."""
        return 1 + max(0, -(-(len(self.tokens) - self.max_length) // self.stride))

    def examples(self) -> Iterator[Example]:
        """The windows; marked is what no earlier one has seen."""
        seen = 1  # nothing is before the first token
        for index in range(self.count):
            begin = index * self.stride
            end = min(begin + self.max_length, len(self.tokens))
            yield Example(self.tokens[begin:end], np.arange(begin, end) >= seen)
            seen = end

    def metrics(self, scores: Iterable[Score]) -> Metrics:
        """loss, perplexity, tokens, bits_per_byte."""
        return LossSum.of(scores).metrics(self.num_bytes)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, with or without a byte order mark. Raises DataError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x})") from error
    if not text.strip():
        raise DataError(f"{path}: the file is empty, expected text")
    return text
