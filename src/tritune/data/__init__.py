"""From a file of rows to packed batches: rows, examples (tokens and which of them are trained), micro-batches."""

from tritune.data.batches import Batch, BatchPosition, BatchStream, pack
from tritune.data.build import ExampleSet, build_examples
from tritune.data.encode import PromptStyle, RowEncoder, TrainOn, alpaca_prompt
from tritune.data.examples import Example, Item, PreferenceExample, show_example
from tritune.data.files import find_split, read_rows
from tritune.data.messages import Turn
from tritune.data.preference import PreferenceRow
from tritune.data.rows import AlpacaRow, ChatRow, CompletionRow, Row, TextRow
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
    "Item",
    "PreferenceExample",
    "PreferenceRow",
    "PromptStyle",
    "Row",
    "RowEncoder",
    "TextRow",
    "TrainOn",
    "Turn",
    "alpaca_prompt",
    "build_examples",
    "find_split",
    "pack",
    "read_rows",
    "show_example",
    "split_rows",
]
