"""All rows of a list to examples at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritune.data.encode import PromptStyle, RowEncoder
from tritune.data.examples import Example, Item, PreferenceExample
from tritune.data.rows import Row
from tritune.errors import DataError
from tritune.text.template import ChatTemplate
from tritune.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ExampleSet:
    """The examples of a file, and what did not go into them as it was."""

    examples: list[Example]
    shortened: int
    """Rows whose prompt was cut from the left to fit."""
    dropped: int
    """Rows whose answer alone does not fit, or that have nothing to train."""
    first_dropped_line: int = 0
    pairs: tuple[PreferenceExample, ...] = ()
    """The pairs of preference rows; ``examples`` is then empty."""

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
    """Examples of ``rows``, each at most ``max_seq_len`` tokens, in the same order; see ``RowEncoder``.

    Raises DataError when no example is left, ConfigError when ``max_seq_len`` is below 2.
    """
    encoder = RowEncoder(tokenizer, template, max_seq_len, prompt_style)
    encoded = [encoder.encode(row) for row in rows]
    items: list[Item] = [item for one in encoded for item in one.items]
    dropped = [row.line for row, one in zip(rows, encoded, strict=True) if not one.items]
    if not items:
        raise DataError(f"none of {len(rows)} rows can be trained: no answer fits max_seq_len {max_seq_len}")
    return ExampleSet(
        [item for item in items if isinstance(item, Example)],
        sum(one.shortened for one in encoded),
        len(dropped),
        dropped[0] if dropped else 0,
        tuple(item for item in items if isinstance(item, PreferenceExample)),
    )
