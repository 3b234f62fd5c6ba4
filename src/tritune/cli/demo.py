"""``tritune demo``: fine-tune the built-in model on its rows, and show its answers before and after."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tritune.cli.errors import INTERRUPTED, note, stop
from tritune.cli.options import (
    checked_output,
    device_option,
    load_model,
    overwrite_option,
    say_what_is_missing,
    threads_option,
)

if TYPE_CHECKING:
    from tritune import Adapter, LoRAConfig, Model, TrainConfig

OUTPUT = "tritune-demo-adapter"

QUESTIONS = (
    "What is the capital of Italy?",
    "What is a baby dog called?",
    "What is a cat?",
    "What does a doctor do?",
    "What do cows eat?",
)
"""Of demo_heldout.jsonl, on which the model never trains: plain things, of which a model of this size is sure."""

NEXT_QUESTION = "What is the opposite of hot?"
MAX_TOKENS = 48
STEPS = 48
BATCH_TOKENS = 256
SEED = 42


@dataclass(frozen=True)
class Look:
    """What the model says at one moment, and its loss on the held-out rows (nats per trained token)."""

    answers: list[str]
    loss: float


@click.command()
@click.option("-o", "--output", default=OUTPUT, show_default=True, metavar="DIR", help="Where the adapter goes.")
@overwrite_option
@click.option("--steps", type=click.IntRange(min=1), default=STEPS, show_default=True, help="Optimizer steps.")
@click.option("--seed", type=int, default=SEED, show_default=True, help="Seed of the run.")
@device_option
@threads_option
def demo(output: str, overwrite: bool, steps: int, seed: int, device: str, threads: int | None) -> None:
    """Teach the built-in model to talk like a pirate.

    Takes about a minute on two CPU cores, and shows the answers before and after.
    """
    lora, config = recipe(steps, seed)
    # The demo's own folder may be written again and again; any other one could hold somebody's work.
    folder = checked_output(Path(output), overwrite or output == OUTPUT)
    started = time.perf_counter()
    try:
        model = load_model(None, device, threads=threads)
        note(f"model: {model.name} · device: {model.backend.description}")
        say_what_is_missing(device)
        before, adapter, after = _run(model, lora, config, folder)
    except KeyboardInterrupt:
        stop("stopped; the demo is not finished", INTERRUPTED)
    _show(before, after)
    _show_end(output, device, time.perf_counter() - started, adapter)


def recipe(steps: int, seed: int) -> tuple[LoRAConfig, TrainConfig]:
    """The settings with which the behaviour is learned within one pass over the rows.

    Loss on the held-out rows after 48 steps with lr 2e-3: 0.44 (32 steps: 0.50; 24 steps with lr 3e-3: 0.50).
    """
    from tritune import LoRAConfig, TrainConfig

    return (
        LoRAConfig(rank=16, alpha=32),
        TrainConfig(lr=2e-3, max_steps=steps, batch_tokens=BATCH_TOKENS, recompute=False, seed=seed, log_every=4),
    )


def _run(model: Model, lora: LoRAConfig, config: TrainConfig, folder: Path) -> tuple[Look, Adapter, Look]:
    import tritune
    from tritune.assets import DEMO_ROWS
    from tritune.training import TerminalProgress

    note("asking before …")
    before = _look(model, None, config)
    adapter = tritune.train(
        model, DEMO_ROWS, lora, config, output=folder, overwrite=True, callbacks=[TerminalProgress()]
    )
    note("asking after …")
    return before, adapter, _look(model, adapter, config)


def _look(model: Model, adapter: Adapter | None, config: TrainConfig) -> Look:
    from tritune import Adapter, LoRAConfig
    from tritune.assets import DEMO_HELDOUT_ROWS
    from tritune.training import mean_loss

    answers = [model.generate(question, adapter, max_tokens=MAX_TOKENS) for question in QUESTIONS]
    # The loss needs an adapter; a fresh one changes nothing.
    measured = adapter or Adapter.create(model, LoRAConfig(rank=1))
    return Look(answers, mean_loss(model, measured, DEMO_HELDOUT_ROWS, config))


def _show(before: Look, after: Look) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="The same questions, before and after", show_lines=True, box=box.ROUNDED)
    table.add_column("question", style="dim", ratio=3)
    table.add_column("before", ratio=4)
    table.add_column("after", style="green", ratio=5)
    for row in zip(QUESTIONS, before.answers, after.answers, strict=True):
        table.add_row(*(Text(text.strip()) for text in row))
    table.add_row("loss on held-out rows", f"{before.loss:.2f}", f"{after.loss:.2f}")
    Console().print(table)


def _show_end(output: str, device: str, seconds: float, adapter: Adapter) -> None:
    extra = [] if device == "auto" else ["--device", device]
    note(f"{seconds:.0f} s in all. The adapter ({adapter.num_parameters:,} parameters) is in {output}. Now try:")
    ask = ["tritune", "generate", *extra, "--adapter", output, "--prompt", NEXT_QUESTION]
    click.echo(shlex.join(ask))
    click.echo(shlex.join(["tritune", "chat", *extra, "--adapter", output]))
    click.echo(shlex.join(["tritune", "train", *extra, "--data", "rows.jsonl", "--output", "my-adapter"]))
