"""From a file of rows to packed batches: rows, examples (tokens and which of them are trained), micro-batches."""

from tritune.data.batches import Batch, pack
from tritune.data.build import ExampleSet, build_examples
from tritune.data.dataset import Dataset
from tritune.data.encode import Encoded, PromptStyle, RowEncoder, TrainOn, alpaca_prompt
from tritune.data.examples import Example, Item, PreferenceExample, show_example
from tritune.data.files import Data, find_split, folders_with, open_rows, read_rows
from tritune.data.messages import Turn
from tritune.data.mixture import RowSet
from tritune.data.preference import PreferenceRow
from tritune.data.rows import AlpacaRow, ChatRow, CompletionRow, Row, TextRow
from tritune.data.source import RowSource
from tritune.data.split import split_rows
from tritune.data.stream import DataStream, StreamPosition

__all__ = [
    "AlpacaRow",
    "Batch",
    "ChatRow",
    "CompletionRow",
    "Data",
    "DataStream",
    "Dataset",
    "Encoded",
    "Example",
    "ExampleSet",
    "Item",
    "PreferenceExample",
    "PreferenceRow",
    "PromptStyle",
    "Row",
    "RowEncoder",
    "RowSet",
    "RowSource",
    "StreamPosition",
    "TextRow",
    "TrainOn",
    "Turn",
    "alpaca_prompt",
    "build_examples",
    "find_split",
    "folders_with",
    "open_rows",
    "pack",
    "read_rows",
    "show_example",
    "split_rows",
]
