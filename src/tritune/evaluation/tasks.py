"""What all tasks have in common: sequences to score, and numbers made of the scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tritune.data import Example
from tritune.evaluation.scorer import Score

Metrics = Mapping[str, float]
"""Numbers by name, such as loss, perplexity, acc and acc_stderr."""


class Task(Protocol):
    """Something to measure an adapter on."""

    @property
    def name(self) -> str:
        """perplexity, choices, loss or preferences."""
        ...

    @property
    def unit(self) -> str:
        """What it consists of: windows, questions, rows, pairs."""
        ...

    @property
    def count(self) -> int:
        """How many of them."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for the user about what is not measured as it stands in the data."""
        ...

    def examples(self) -> Iterable[Example]:
        """The sequences; the marked tokens are to be scored."""
        ...

    def metrics(self, scores: Iterable[Score]) -> Metrics:
        """Numbers of the scores of all the examples, in order."""
        ...


@dataclass
class LossSum:
    """A loss over all tokens of all sequences: their sum by their number, never a mean of means."""

    nll: float = 0.0
    tokens: int = 0

    @classmethod
    def of(cls, scores: Iterable[Score]) -> LossSum:
        """The sum over some scores."""
        total = cls()
        for score in scores:
            total.nll -= score.log_likelihood
            total.tokens += score.nll.size
        return total

    def metrics(self, num_bytes: int = 0) -> dict[str, float]:
        """loss (nats a token), perplexity, tokens, and bits_per_byte where the text has ``num_bytes``."""
        loss = self.nll / self.tokens
        found = {"loss": loss, "perplexity": exp(loss), "tokens": float(self.tokens)}
        return found | ({"bits_per_byte": self.nll / math.log(2) / num_bytes} if num_bytes else {})


def accuracy(name: str, hits: Sequence[bool]) -> dict[str, float]:
    """The share of hits under a name, and the standard error of that mean."""
    mean = sum(hits) / len(hits)
    return {name: mean, f"{name}_stderr": math.sqrt(mean * (1 - mean) / max(1, len(hits) - 1))}


def exp(loss: float) -> float:
    """e to the loss, infinite where no float holds it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Loss:
    """The loss of rows on their trained tokens, as training has it."""

    rows: Sequence[Example]
    notes: Sequence[str] = field(default_factory=tuple[str, ...])
    name: str = "loss"
    unit: str = "rows"

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def examples(self) -> Sequence[Example]:
        """The rows."""
        return self.rows

    def metrics(self, scores: Iterable[Score]) -> Metrics:
        """loss, perplexity and tokens."""
        return LossSum.of(scores).metrics()
