"""``tritune plot``: the curves of runs as a picture."""

from __future__ import annotations

from collections.abc import Sequence

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "-o", "--output", default="curves.png", show_default=True, metavar="FILE", help="A .png, .svg or .pdf file."
)
def plot(runs: Sequence[str], output: str) -> None:
    """Draw the loss, learning-rate, gradient-norm and speed curves of runs into one picture.

    A RUN is the output folder of `tritune train`, or its log.jsonl; also of a run that still goes on. Needs matplotlib:
    pip install 'tritune[plot]'.
    """
    from tritune.training.curves import plot_runs

    click.echo(plot_runs(runs, output))
