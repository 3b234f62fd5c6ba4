"""``tritune adapter``: look at adapters, convert them to other programs' formats, combine and compare them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritune.cli.options import checked_output, model_option, weighted_path
from tritune.errors import AdapterError, ConfigError

if TYPE_CHECKING:
    from tritune import Adapter

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
sizes_option = click.option(
    "-m", "--model", metavar="PATH|ID", help="The model that the adapter must fit.  [default: what its tensors tell]"
)
format_option = click.option(
    "--to", "kind", type=click.Choice(["peft", "gguf", "mlx", "hesper"]), default="peft", show_default=True,
    help="peft: a directory, as tritune writes it; mlx: a directory for mlx-lm; gguf: a file for llama.cpp; hesper: a "
    "file for Hesper.",
)  # fmt: skip
output_option = click.option("-o", "--output", required=True, metavar="PATH", help="Where the new adapter goes.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an adapter that is there (not mlx).")


@click.group()
def adapter() -> None:
    """Look at adapters, convert, combine and compare them."""


@adapter.command()
@click.argument("path")
@sizes_option
@json_option
def info(path: str, model: str | None, as_json: bool) -> None:
    """Show format, base, ranks, targets, size and norms of an adapter; with --model, check that it fits."""
    from tritune.cli.adapter_facts import adapter_facts
    from tritune.cli.facts import opened_model
    from tritune.cli.info import table

    opened = None if model is None else opened_model(model, progress=not as_json)
    facts = adapter_facts(path, opened)
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else table("adapter", facts))


@adapter.command()
@click.argument("path")
@format_option
@output_option
@model_option
@overwrite_option
def convert(path: str, kind: str, output: str, model: str | None, overwrite: bool) -> None:
    """Write an adapter in another format. The content tells the format of PATH, never its name.

    What a format cannot hold is refused: mlx-lm has one rank for all modules, Hesper only q_proj and v_proj. llama.cpp
    wants the architecture of the base's own file: with --to gguf, give that .gguf file as --model.
    """
    place = _free(output, kind, overwrite)
    (loaded,) = _load([path], model)
    loaded.save(place, kind)
    click.echo(f"adapter: {place}")


@adapter.command()
@click.argument("adapters", nargs=-1, required=True, metavar="PATH[=WEIGHT]...")
@click.option(
    "--type", "combination_type", type=click.Choice(["cat", "linear", "svd", "ties"]), default="cat", show_default=True,
    help="As peft's add_weighted_adapter has it. cat: exact, the ranks add up; svd: the nearest of --svd-rank; linear: "
    "A and B are summed apart, a rough way; ties: as linear, of each tensor's largest values where the signs agree.",
)  # fmt: skip
@click.option("--svd-rank", type=int, help="Rank of the result of svd.  [default: the largest rank of the adapters]")
@click.option("--density", type=float, help="Share of each tensor's values that ties keeps, such as 0.5.")
@format_option
@output_option
@model_option
@overwrite_option
def combine(
    adapters: Sequence[str],
    combination_type: str,
    svd_rank: int | None,
    density: float | None,
    kind: str,
    output: str,
    model: str | None,
    overwrite: bool,
) -> None:
    """Make one adapter of several, each with a weight: `story=0.7 style=0.3`."""
    from tritune.lora import combine_adapters

    weighted = [weighted_path(text) for text in adapters]
    place = _free(output, kind, overwrite)
    loaded = _load([path for path, _ in weighted], model)
    pairs = [(adapter, weight) for adapter, (_, weight) in zip(loaded, weighted, strict=True)]
    combine_adapters(pairs, combination_type, svd_rank=svd_rank, density=density).save(place, kind)
    click.echo(f"adapter: {place}")


@adapter.command()
@click.argument("first")
@click.argument("second")
@sizes_option
@json_option
def diff(first: str, second: str, model: str | None, as_json: bool) -> None:
    """Show how far the corrections s·B·A of two adapters lie apart, module by module.

    Relative to the larger of both norms: 0 for equal corrections, 1 where only one adapter has one, at most 2.
    """
    from tritune.cli.adapter_facts import distance_facts, opened_adapter
    from tritune.cli.facts import opened_model

    opened = None if model is None else opened_model(model, progress=not as_json)
    facts = distance_facts(opened_adapter(first, opened), opened_adapter(second, opened))
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(_distances(facts)))


def _distances(facts: dict[str, Any]) -> list[str]:
    rows = {**facts["modules"], "all": facts["total"]}
    width = max(map(len, rows))
    lines = [f"{'module':<{width}}  relative  ‖first‖   ‖second‖"]
    return lines + [
        f"{name:<{width}}  {row['relative']:<8.4f}  {row['norms'][0]:<8.4g}  {row['norms'][1]:<8.4g}".rstrip()
        for name, row in rows.items()
    ]


def _free(output: str, kind: str, overwrite: bool) -> Path:
    """The place for a new adapter, if nothing that is there would be lost. Raises ConfigError."""
    place = Path(output)
    if kind == "peft":
        return checked_output(place, overwrite)
    if kind != "mlx" and place.exists() and not overwrite:  # a directory of mlx-lm is never replaced
        raise ConfigError(f"--output {output}: is there already; give --overwrite or another name")
    return place


def _load(paths: Sequence[str], model: str | None) -> list[Adapter]:
    from tritune.cli.adapter_facts import opened_adapter
    from tritune.cli.facts import BUILT_IN, opened_model

    opened = opened_model(model or BUILT_IN, progress=True)
    try:
        return [opened_adapter(path, opened) for path in paths]
    except AdapterError as error:
        if model or "this base" not in str(error):
            raise
        raise AdapterError(f"{error} (without --model, the base is the built-in model)") from None
