"""The command ``tritune``: its subcommands, and what becomes of their errors."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

import click

from tritune.cli.adapter import adapter
from tritune.cli.chat import chat
from tritune.cli.data import data
from tritune.cli.demo import demo
from tritune.cli.errors import exit_code_of
from tritune.cli.eval import evaluate
from tritune.cli.export import export
from tritune.cli.generate import generate
from tritune.cli.info import info
from tritune.cli.plot import plot
from tritune.cli.train import train


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        try:
            click.echo(f"tritune {metadata.version('tritune')}")
        except metadata.PackageNotFoundError:
            click.echo("tritune, from a source folder that is not installed")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
def commands() -> None:
    """Fine-tune ternary (BitNet b1.58) language models with LoRA, and run them with their adapters.

    On any GPU through WebGPU, and on a CPU. Start with `tritune demo`.
    """


for command in (demo, train, data, evaluate, generate, chat, info, adapter, export, plot):
    commands.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, that of the error (see tritune.errors), 130 after Ctrl-C."""
    args = None if arguments is None else list(arguments)
    return exit_code_of(lambda: commands.main(args, prog_name="tritune", standalone_mode=False))
