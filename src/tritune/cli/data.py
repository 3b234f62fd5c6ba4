"""``tritune data``: look at rows before they are trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tritune.cli.errors import note
from tritune.cli.options import model_option, template_option
from tritune.cli.settings import TRAIN, setting_options
from tritune.errors import DataError

if TYPE_CHECKING:
    from tritune.data import Example
    from tritune.data.check import Report
    from tritune.text import Tokenizer

BAR = 40
"""Most characters of a bar of the histogram."""
PLACES = 5
"""Most rows that are named of those that are cut or left out."""


@click.group()
def data() -> None:
    """Look at rows of training data."""


_NAMES = {"max_seq_len", "prompt_style", "system", "train_on"}


@data.command()
@click.argument("source", nargs=-1, required=True)
@model_option
@template_option
@setting_options(tuple(setting for setting in TRAIN if setting.field in _NAMES))
@click.option("--split", default="train", show_default=True, help="Of folders and data sets: train, valid or test.")
@click.option("--tokens", type=click.IntRange(min=0), default=100, show_default=True,
              help="Most tokens of the first example to show; 0 = all.")  # fmt: skip
def check(
    source: tuple[str, ...], model: str | None, chat_template: str | None, split: str, tokens: int, **encoding: Any
) -> None:
    """Read every row of SOURCE: what cannot be used, lengths in tokens, and what is trained of the first example.

    SOURCE is what `tritune train --data` takes. The exit code is 2 when a row cannot be used.
    """
    from tritune.data import RowEncoder, open_rows
    from tritune.data.check import check_rows
    from tritune.data.files import SPLITS
    from tritune.model import load_text

    if split not in SPLITS:
        raise click.BadParameter(f"expected one of {', '.join(SPLITS)}, found {split!r}", param_hint="--split")
    rows = open_rows(source, split)
    tokenizer, template = load_text(model, chat_template)
    report = check_rows(rows, RowEncoder(tokenizer, template, **encoding), note)
    _show(report, encoding["max_seq_len"])
    if report.first is not None:
        for title, example in zip(("first example", "rejected"), report.first.sequences, strict=False):
            click.echo(f"\n{title} (· seen, ✓ trained):")
            _show_tokens(example, tokenizer, tokens)
    if report.bad:
        raise DataError(f"{rows.name}: {report.bad} of {report.rows} rows cannot be used (each is named above)")
    if not report.usable:
        raise DataError(f"{rows.name}: none of {report.rows} rows can be trained")


def _show(report: Report, max_seq_len: int) -> None:
    kinds = ", ".join(f"{count:,} {name}" for name, count in report.kinds.items())
    click.echo(f"rows: {report.rows:,}" + (f" ({kinds})" if kinds else "") + f" · unusable: {report.bad:,}")
    for places, what in (
        (report.shortened, f"cut from the left of the prompt to fit {max_seq_len} tokens"),
        (report.left_out, f"left out: the answer does not fit {max_seq_len} tokens, or teaches nothing"),
    ):
        if places:
            more = f" and {len(places) - PLACES:,} more" if len(places) > PLACES else ""
            click.echo(f"{what}: {len(places):,} ({'; '.join(places[:PLACES])}{more})")
    if not report.lengths:
        return
    lengths = np.asarray(report.lengths)
    click.echo(
        f"examples: {len(lengths):,} · tokens: {report.tokens:,}, of which trained: {report.trained:,}\n"
        f"length: mean {lengths.mean():.1f}, median {np.median(lengths):.0f}, longest {lengths.max()} "
        f"({report.longest})\n\ntokens of an example:"
    )
    ranges = list(report.histogram())
    most = max(count for _, _, count in ranges)
    width = len(str(ranges[-1][1]))
    for least, greatest, count in ranges:
        bar = "█" * round(BAR * count / most) or ("▏" if count else "")
        click.echo(f"  {least:>{width}} – {greatest:<{width}} {count:>9,} {bar}")


def _show_tokens(example: Example, tokenizer: Tokenizer, most: int) -> None:
    shown = len(example) if most == 0 else min(most, len(example))
    for index in range(shown):
        token, is_trained = int(example.tokens[index]), bool(example.trained[index]) and index > 0
        text = repr(tokenizer.decode([token], skip_special=False))
        line = f"  {index:>5} {token:>7} {'✓' if is_trained else '·'} {text}"
        click.echo(click.style(line, fg="green") if is_trained else line)
    if shown < len(example):
        click.echo(f"  … and {len(example) - shown} more tokens (--tokens 0 shows all)")
