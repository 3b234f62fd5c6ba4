"""From a file of rows to packed batches: rows, examples (tokens and which of them are trained), micro-batches."""

from tritune.data.batches import Batch, BatchPosition, BatchStream, pack
from tritune.data.examples import Example, ExampleSet, PromptStyle, alpaca_prompt, build_examples, show_example
from tritune.data.files import find_split, read_rows
from tritune.data.rows import AlpacaRow, ChatRow, CompletionRow, Row, TextRow, Turn
from tritune.data.split import split_rows

__all__ = [
    "AlpacaRow",
    "Batch",
    "BatchPosition",
    "BatchStream",
    "ChatRow",
    "CompletionRow",
    "Example",
    "ExampleSet",
    "PromptStyle",
    "Row",
    "TextRow",
    "Turn",
    "alpaca_prompt",
    "build_examples",
    "find_split",
    "pack",
    "read_rows",
    "show_example",
    "split_rows",
]
