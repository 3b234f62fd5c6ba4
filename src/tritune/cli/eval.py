"""``tritune eval``: measure a model and adapters side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tritune.cli.errors import note
from tritune.cli.options import (
    ADAPTER_HELP,
    context_option,
    device_option,
    head_option,
    load_adapters,
    load_model,
    model_option,
    say_what_is_missing,
    template_option,
    threads_option,
)

if TYPE_CHECKING:
    from tritune.evaluation import Evaluation, Task

BASE = "base"
"""Name of the model without an adapter in the results."""


@click.command("eval")
@model_option
@click.option(
    "-a",
    "--adapter",
    "adapters",
    multiple=True,
    metavar="PATH[=WEIGHT]",
    help=f"Compare this adapter ({ADAPTER_HELP}) with the base; with =0.7 behind it, 0.7 times its correction. May be "
    "given repeatedly: each is measured alone.",
)
@click.option("-d", "--data", required=True, metavar="FILE", help="A text, or .jsonl or .json rows.")
@click.option(
    "--task",
    type=click.Choice(["auto", "perplexity", "choices", "loss"]),
    default="auto",
    show_default=True,
    help="What to measure; auto: by the data.",
)
@click.option(
    "--max-length", type=int, help="Most tokens of a window, question or row.  [default: the model's context]"
)
@click.option("--stride", type=int, help="Tokens from a window to the next.  [default: half of --max-length]")
@click.option("--limit", type=int, help="Only the first N windows, questions or rows.")
@click.option("--apply-chat-template", "chat", is_flag=True, help="Ask questions in the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@head_option
@context_option
@device_option
@threads_option
@template_option
def evaluate(
    model: str | None,
    adapters: Sequence[str],
    data: str,
    chat: bool,
    as_json: bool,
    head: str,
    context: int | None,
    device: str,
    threads: int | None,
    chat_template: str | None,
    **options: Any,
) -> None:
    """Measure a model, and adapters beside it.

    Of a text the perplexity, with a sliding window; of multiple-choice questions the accuracy by log-likelihood; of
    training rows the loss on the trained tokens, and of preference rows how much likelier the better answer is.
    """
    from tritune.evaluation import make_task, run_task

    if twice := sorted({name for name in adapters if adapters.count(name) > 1 or name == BASE}):
        raise click.UsageError(f"--adapter {twice[0]}: {'names the base' if twice[0] == BASE else 'is given twice'}")
    loaded = load_model(model, device, chat_template, context, threads, head)
    say_what_is_missing(device)
    compared = {BASE: None} | {path: load_adapters([path], loaded) for path in adapters}
    task = make_task(loaded, data, chat=chat, **options)
    for line in task.notes:
        note(f"note: {line}")
    with _progress(task, len(compared)) as advance:
        found = run_task(loaded, task, compared, advance)
    if as_json:
        click.echo(json.dumps(_facts(found, loaded.name, data), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print_table(found)


@contextmanager
def _progress(task: Task, times: int) -> Generator[Callable[[int], None]]:
    """A bar on stderr that goes over the task's tokens, for each adapter."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    total = times * sum(len(example) for example in task.examples())
    columns = (TextColumn("evaluating"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        number = bar.add_task("evaluating", total=total)
        yield lambda tokens: bar.advance(number, tokens)


def _facts(found: Evaluation, model: str, data: str) -> dict[str, Any]:
    """JSON has no infinity and no NaN: null stands for them."""

    def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}

    return {
        "task": found.task,
        "model": model,
        "data": data,
        found.unit: found.count,
        "results": {name: finite(metrics) for name, metrics in found.results.items()},
    }


def _print_table(found: Evaluation) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    first = found.results[BASE]
    names = [name for name in first if not name.endswith("_stderr")]
    unit = found.unit.removesuffix("s") if found.count == 1 else found.unit
    table = Table(title=f"{found.task} over {found.count:,} {unit}", title_justify="left")
    table.add_column("adapter", overflow="fold")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right", overflow="fold")  # a cut number would be a wrong one
    for adapter, metrics in found.results.items():
        compared = metrics is not first
        cells = [Text(adapter).append("\n  Δ base" if compared else "", "dim")]
        for name in names:
            error = metrics.get(f"{name}_stderr")
            cell = Text(_number(name, metrics[name]) + ("" if error is None else f" ± {error:.4f}"))
            if compared and name != "tokens":
                cell.append(f"\n{metrics[name] - first[name]:+,.4f}", "dim")
            cells.append(cell)
        table.add_row(*cells)
    Console().print(table)


def _number(name: str, value: float) -> str:
    return f"{value:,.0f}" if name == "tokens" else f"{value:,.4f}"
