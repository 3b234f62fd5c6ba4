"""``tritune demo``: fine-tune the built-in model on its rows, and show its answers before and after."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tritune.cli.errors import INTERRUPTED, note, stop
from tritune.cli.options import device_option, load_model
from tritune.errors import ConfigError

if TYPE_CHECKING:
    from tritune import Adapter, LoRAConfig, Model, TrainConfig

QUESTIONS = (
    "What is the capital of Italy?",
    "What color is the sky?",
)
"""Rows of demo_heldout.jsonl: the model never trains on them."""

MAX_TOKENS = 40
STEPS = 40
SEED = 42


@dataclass(frozen=True)
class Answer:
    """What the model said to a question before and after."""

    question: str
    before: str
    after: str


@click.command()
@click.option(
    "-o", "--output", default="tritune-demo-adapter", show_default=True, metavar="DIR", help="Where the adapter goes."
)
@click.option("--steps", type=click.IntRange(min=1), default=STEPS, show_default=True, help="Optimizer steps.")
@click.option("--seed", type=int, default=SEED, show_default=True, help="Seed of the run.")
@device_option
def demo(output: str, steps: int, seed: int, device: str) -> None:
    """Teach the built-in model to talk like a pirate, in about a minute, and show its answers before and after."""
    lora, config = recipe(steps, seed)
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output {output}: is a file; expected a folder or a new name")
    started = time.perf_counter()
    try:
        model = load_model(None, device)
        note(f"model: {model.name} · device: {model.backend.description}")
        _say_what_is_missing(device)
        note("asking it before …")
        before = _answers(model, None)
        adapter = _train(model, lora, config, folder)
        note("asking it after …")
        after = _answers(model, adapter)
    except KeyboardInterrupt:
        stop("stopped; the demo is not finished", INTERRUPTED)
    _show([Answer(*row) for row in zip(QUESTIONS, before, after, strict=True)])
    _show_end(output, device, time.perf_counter() - started)


def recipe(steps: int, seed: int) -> tuple[LoRAConfig, TrainConfig]:
    """The settings with which the behaviour is learned in few steps."""
    from tritune import LoRAConfig, TrainConfig

    return (
        LoRAConfig(rank=16),
        TrainConfig(lr=2e-3, max_steps=steps, batch_tokens=512, recompute=False, seed=seed, log_every=1),
    )


def _train(model: Model, lora: LoRAConfig, config: TrainConfig, folder: Path) -> Adapter:
    import tritune
    from tritune.assets import DEMO_ROWS
    from tritune.training import TerminalProgress

    return tritune.train(model, DEMO_ROWS, lora, config, output=folder, listeners=[TerminalProgress()])


def _answers(model: Model, adapter: Adapter | None) -> list[str]:
    return [model.generate(question, adapter, max_tokens=MAX_TOKENS) for question in QUESTIONS]


def _say_what_is_missing(device: str) -> None:
    from tritune.cli.facts import device_facts

    facts = device_facts()
    if device == "auto" and facts["auto"] == "numpy":
        note(f"no GPU is used: {facts['why']}")


def _show(answers: Sequence[Answer]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The same questions, before and after", show_lines=True, box=box.ROUNDED)
    table.add_column("question", style="dim")
    table.add_column("before")
    table.add_column("after", style="green")
    for answer in answers:
        table.add_row(*(_plain(text) for text in (answer.question, answer.before, answer.after)))
    Console().print(table)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text.strip())


def _show_end(output: str, device: str, seconds: float) -> None:
    extra = [] if device == "auto" else ["--device", device]
    note(f"{seconds:.0f} s in all. The adapter is in {output}. Now try:")
    ask = ["tritune", "generate", *extra, "--adapter", output, "--prompt", "What do pirates eat?"]
    click.echo(shlex.join(ask))
    click.echo(shlex.join(["tritune", "chat", *extra, "--adapter", output]))
    click.echo(shlex.join(["tritune", "train", *extra, "--data", "your-rows.jsonl", "--output", "my-adapter"]))
