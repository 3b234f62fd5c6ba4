"""``tritune train``: fine-tune a model on rows and save the adapter."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tritune.cli.config_file import read_config_file
from tritune.cli.errors import INTERRUPTED, note, stop
from tritune.cli.options import (
    checked_output,
    device_option,
    load_adapter,
    load_model,
    model_option,
    overwrite_option,
    profile_option,
    profiled,
    say_what_is_missing,
    template_option,
    threads_option,
)
from tritune.cli.settings import LORA, TRAIN, setting_options, split
from tritune.errors import ConfigError
from tritune.lora.config import LoRAConfig
from tritune.training.config import TrainConfig
from tritune.training.events import Callback
from tritune.training.run_folder import CONFIG_NAME

if TYPE_CHECKING:
    from tritune.data import RowSet

OUTPUT = "adapter"

SHOWN_PROMPT = 80
"""Most characters of a prompt in the command that is shown at the end."""


@click.command()
@model_option
@click.option(
    "-d",
    "--data",
    metavar="SOURCE[=WEIGHT]",
    multiple=True,
    help="Rows to train on: a file (.jsonl, .json, also .gz), a folder with a train file, or a Hugging Face data set "
    "(org/name). May be given repeatedly, with weights for their shares.  [required]",
)
@click.option(
    "--eval-data",
    metavar="SOURCE",
    multiple=True,
    help="Held-out rows, whose loss is measured as training goes on (or --eval-split).  "
    "[default: the valid file of a --data folder]",
)
@click.option(
    "-o",
    "--output",
    default=OUTPUT,
    show_default=True,
    metavar="DIR",
    help="Where the adapter, its checkpoints and the log go.",
)
@overwrite_option
@click.option(
    "--resume",
    "--resume-from-checkpoint",
    metavar="PATH|auto",
    help="Go on from a checkpoint, or (auto) from the newest one in the output folder, if there is one. The settings "
    "are those of the run, unless flags or --config say otherwise.",
)
@click.option("-a", "--adapter", metavar="DIR", help="Start from this adapter, with its rank, alpha and targets.")
@setting_options(LORA)
@setting_options(TRAIN)
@device_option
@threads_option
@template_option
@profile_option
@click.option(
    "--report-to",
    default="none",
    show_default=True,
    metavar="NAMES",
    help="Where curves go besides log.jsonl: some of tensorboard, wandb and trackio, with commas.",
)
@click.option("-c", "--config", type=click.Path(path_type=Path), help="The same settings in YAML; flags win.")
@click.pass_context
def train(context: click.Context, config: Path | None, overwrite: bool, **_: Any) -> None:
    """Fine-tune a model with LoRA.

    The rows are chats, instructions, prompts with completions, or texts, one JSON object a line; only the answers are
    trained. With --method dpo they are pairs of a better and a worse answer. The adapter is written in PEFT's format:
    the one with the lowest loss on the held-out rows, or without such rows the last one. Ctrl-C saves what was trained
    so far. `tritune train -c DIR/config.yaml` repeats the run of a folder.
    """
    chosen = (read_config_file(config) if config else {}) | _given(context)
    chosen = _of_resumed_run(chosen.get("resume"), chosen, read=config is None) | chosen
    values = context.params | chosen
    lora, settings = LoRAConfig(**split(values, LoRAConfig)), TrainConfig(**split(values, TrainConfig))
    _check_start(values["adapter"], list(split(chosen, LoRAConfig)))
    output = checked_output(Path(values["output"]), overwrite, values["resume"])
    values["data"] = _opened(values["data"], context)
    prompt = _first_prompt(values["data"])
    saved = _run(values, lora, settings, output, overwrite)
    _show_end(saved, values, prompt)


def _given(context: click.Context) -> dict[str, Any]:
    """The flags that stand on the command line."""
    source = context.get_parameter_source
    return {name: value for name, value in context.params.items() if source(name) is ParameterSource.COMMANDLINE}


def _of_resumed_run(resume: str | None, chosen: dict[str, Any], read: bool) -> dict[str, Any]:
    """The settings of the run that is resumed, and its folder to go on writing to."""
    if resume is None:
        return {}
    folder = Path(chosen.get("output", OUTPUT)) if resume == "auto" else Path(resume).resolve().parent
    written = folder / CONFIG_NAME
    return {"output": str(folder)} | (read_config_file(written) if read and written.is_file() else {})


def _check_start(adapter: str | None, lora_settings: list[str]) -> None:
    if adapter is not None and lora_settings:
        raise ConfigError(
            f"--adapter {adapter}: an adapter keeps its own rank, alpha and targets; "
            f"leave out {', '.join(lora_settings)}"
        )


def _opened(data: Sequence[str], context: click.Context) -> RowSet:
    """The rows, so that a mistake shows before a model is loaded."""
    from tritune.data import open_rows

    if not data:
        raise click.UsageError("Missing option '--data' / '-d'.", context)
    rows = open_rows(data)
    rows.verify()
    return rows


def _first_prompt(rows: RowSet) -> str:
    """The first row's prompt if it is short."""
    from tritune.data import AlpacaRow, ChatRow

    first = rows[0]
    text = ""
    if isinstance(first, AlpacaRow):
        text = first.instruction if not first.input else ""
    elif isinstance(first, ChatRow):
        text = next((turn.content for turn in first.turns if turn.role == "user"), "")
    return text if 0 < len(text) <= SHOWN_PROMPT and text.isprintable() else "Hello!"


class _Saved(Callback):
    """Remembers the last save of a run."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.step = 0

    def on_save(self, path: Path, step: int) -> None:
        self.path, self.step = path, step


def _run(values: dict[str, Any], lora: LoRAConfig, settings: TrainConfig, output: Path, overwrite: bool) -> Path:
    import tritune
    from tritune.training import TerminalProgress
    from tritune.training.trackers import TrackerCallback, make_trackers

    saved = _Saved()
    trackers = make_trackers(values["report_to"], output)  # before a model is loaded: a package may be missing
    try:
        model = load_model(values["model"], values["device"], values["chat_template"], threads=values["threads"])
        say_what_is_missing(values["device"])
        start = load_adapter(values["adapter"], model)
        with profiled(model, values["profile"]):
            tritune.train(
                model,
                values["data"],
                None if start else lora,
                settings,
                adapter=start,
                eval_data=values["eval_data"] or None,
                output=output,
                resume=values["resume"],
                overwrite=overwrite,
                callbacks=[TerminalProgress(), TrackerCallback(trackers, values), saved],
            )
    except KeyboardInterrupt:
        if saved.path is None:
            stop("stopped; nothing was trained, nothing is saved", INTERRUPTED)
        stop(
            f"stopped; the adapter after {saved.step} steps is saved in {saved.path}; go on with --resume auto",
            INTERRUPTED,
        )
    return output


def _show_end(saved: Path, values: dict[str, Any], prompt: str) -> None:
    words = ["tritune", "generate"]
    for flag, default in (("model", None), ("device", "auto"), ("chat_template", None)):
        if values[flag] != default:
            words += ["--" + flag.replace("_", "-"), values[flag]]
    words += ["--adapter", str(saved), "--prompt", prompt]
    click.echo(f"adapter: {saved}")
    note("try it:")
    click.echo(shlex.join(words))
