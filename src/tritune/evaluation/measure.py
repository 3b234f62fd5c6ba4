"""evaluate: measure a model and its adapters, side by side, on a text, on questions, or on rows of training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from tritune.data import build_examples
from tritune.data.fields import BadRow, describe
from tritune.data.files import SUFFIXES, open_values
from tritune.data.json_text import BadJson
from tritune.data.source import RowSource
from tritune.errors import ConfigError, DataError
from tritune.evaluation.choices import Choices
from tritune.evaluation.preferences import Preferences
from tritune.evaluation.questions import Question, is_question, parse_question
from tritune.evaluation.scorer import Progress, Scorer
from tritune.evaluation.tasks import Loss, Metrics, Task
from tritune.evaluation.text import Perplexity, read_text
from tritune.lora import AdapterLike, as_one
from tritune.model import Model

TaskName = Literal["auto", "perplexity", "choices", "loss"]
TASKS: tuple[TaskName, ...] = ("auto", "perplexity", "choices", "loss")

Data = str | Path | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Evaluation:
    """What was measured: ``results[name]`` are the numbers of the adapter of that name."""

    task: str  # perplexity, choices, loss or preferences
    count: int  # how many windows, questions, rows or pairs
    unit: str  # which of these
    results: Mapping[str, Metrics]  # by name of an adapter: loss, acc, … by name
    notes: Sequence[str]  # what was not measured as it stands in the data


def evaluate(
    model: Model,
    data: Data,
    adapters: Mapping[str, AdapterLike | None] | None = None,
    *,
    task: TaskName = "auto",
    max_length: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    chat: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a model under each of some adapters, side by side.

    Args:
        model: The base.
        data: A text file, or rows: a file, a folder or a data set of the Hub with a test split, or a list. The rows are
            multiple-choice questions, or training rows of any kind.
        adapters: By name. None as an adapter stands for the base, which is also the default; several adapters with
            weights, ``[(a, 0.7), (b, 0.3)]``, are one.
        task: What to measure; ``auto``: by the data. ``perplexity`` of a text; ``choices``: accuracy on questions by
            log-likelihood; ``loss`` on the trained tokens of rows, or for preference rows how much likelier the
            better answer is.
        max_length: Most tokens of a window, question or row (default: the context).
        stride: Tokens from a window of a text to the next (default: half of max_length).
        limit: Only the first windows, questions or rows.
        chat: Ask questions in the chat template.
        progress: Called with the number of tokens dealt with since the last call.

    Raises:
        DataError: The data cannot be read, or is not what the task takes.
        ConfigError: A setting has a value that cannot be used.
        AdapterError: An adapter was made for a model of another size.
    """
    made = make_task(model, data, task=task, max_length=max_length, stride=stride, limit=limit, chat=chat)
    return run_task(model, made, adapters, progress)


def run_task(
    model: Model, task: Task, adapters: Mapping[str, AdapterLike | None] | None = None, progress: Progress | None = None
) -> Evaluation:
    """Measure a task that was made; see ``evaluate``."""
    adapters = {"base": None} if adapters is None else adapters
    if not adapters:
        raise ConfigError("adapters: there are none; expected at least one (None stands for the base)")
    longest = max(len(example) for example in task.examples())
    scorer = Scorer(model, [as_one(adapter) for adapter in adapters.values()], max_length=longest)
    results = {
        name: task.metrics(scorer.score(task.examples(), number, progress)) for number, name in enumerate(adapters)
    }
    return Evaluation(task.name, task.count, task.unit, results, task.notes)


def make_task(
    model: Model,
    data: Data,
    *,
    task: TaskName = "auto",
    max_length: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    chat: bool = False,
) -> Task:
    """The task that some data is; see ``evaluate``."""
    if task not in TASKS:
        raise ConfigError(f"task: expected one of {', '.join(TASKS)}, found {task!r}")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit: expected a number >= 1, found {limit}")
    if max_length is not None and not 2 <= max_length <= model.context_length:
        raise ConfigError(f"max_length: expected 2 … {model.context_length} (the context), found {max_length}")
    length = model.context_length if max_length is None else max_length
    if task == "auto":
        task = _kind(data)
    if stride is not None and task != "perplexity":
        raise ConfigError(f"stride: only a text has windows, these are rows of the task {task}")
    if task == "perplexity":
        if not isinstance(data, (str, Path)):
            raise ConfigError("task perplexity: expected a text file, found rows")
        return Perplexity.of(read_text(Path(data)), model.tokenizer, length, stride, limit)
    if task == "choices":
        return Choices.of(read_questions(data, limit), model.tokenizer, model.template, length, chat)
    source = RowSource(open_values(data, "test"))
    rows = [source[index] for index in range(_count(source, limit))]
    built = build_examples(rows, model.tokenizer, model.template, length)
    if built.pairs:
        return Preferences(built.pairs, built.notes(length))
    return Loss(built.examples, built.notes(length))


def _kind(data: Data) -> TaskName:
    if isinstance(data, (str, Path)) and Path(data).is_file() and not Path(data).name.endswith(SUFFIXES):
        return "perplexity"
    values = open_values(data, "test")
    for index in range(len(values)):
        try:
            value = values.value(index)
        except BadRow:
            continue  # who reads the rows will say where it is
        if isinstance(value, Mapping):
            return "choices" if is_question(cast("Mapping[str, Any]", value)) else "loss"
    return "loss"


def read_questions(source: Data, limit: int | None = None) -> list[Question]:
    """The (first) questions of a source of rows. Raises DataError naming it and the place."""
    values = open_values(source, "test")
    questions: list[Question] = []
    for index in range(_count(values, limit)):
        try:
            value = values.value(index)
            if not isinstance(value, Mapping):
                raise BadRow(f"the row is {describe(value)}, expected an object")
            questions.append(parse_question(cast("Mapping[str, Any]", value), values.line(index)))
        except BadRow as reason:
            place = f":{reason.line}" if isinstance(reason, BadJson) else f": {values.place(index)}"
            raise DataError(f"{values.name}{place}: {reason}") from None
    return questions


def _count(rows: Sized, limit: int | None) -> int:
    return len(rows) if limit is None else min(limit, len(rows))
