"""``tritune export``: a model and its adapter as one ordinary model."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tritune.cli.options import (
    adapters_option,
    device_option,
    load_adapters,
    load_model,
    model_option,
    threads_option,
)
from tritune.errors import ConfigError

NOT_TERNARY = (
    "a ternary export is refused: W + s·B·A rounded back to {-1, 0, 1} would lose what was learned. Give --dense for a "
    "model in bfloat16, or keep the adapter beside the base (`tritune adapter convert` writes it for other programs)"
)


@click.command()
@model_option
@adapters_option
@click.option("--dense", is_flag=True, help="Write plain bfloat16 linears W + s·B·A. The only kind there is.")
@click.option("-o", "--output", required=True, metavar="DIR", help="Where the model goes, a new directory.")
@device_option
@threads_option
def export(
    model: str | None, adapters: Sequence[str], dense: bool, output: str, device: str, threads: int | None
) -> None:
    """Write a model with its adapter as one Hugging Face directory in bfloat16, which is no longer ternary.

    transformers loads it as a plain model. It takes 16 bits a weight, and its logits differ from the live model's a
    little: how much is measured and shown.
    """
    from tritune.export import export_dense

    if not dense:
        raise ConfigError(NOT_TERNARY)
    loaded = load_model(model, device, threads=threads)
    done = export_dense(loaded, output, load_adapters(adapters, loaded))
    click.echo(f"model: {done.path} ({done.nbytes / 2**20:.1f} MiB of weights)")
    click.echo(
        "It is no longer ternary: its linears hold W + s·B·A in bfloat16, 16 bits a weight, and their inputs are not "
        "rounded to int8."
    )
    click.echo(
        f"On {done.tokens} tokens its logits differ from the live model's by {done.difference:.2%} (the largest by "
        f"{done.largest:.3g}); the likeliest token is the same after {done.same_token} of them."
    )
    if adapters:
        click.echo(f"Leaving the adapter out changes them by {done.adapter_effect:.2%}.")
