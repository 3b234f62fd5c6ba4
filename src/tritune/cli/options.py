"""Flags that several commands share, and what they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tritune.cli.errors import note
from tritune.errors import ConfigError

if TYPE_CHECKING:
    from tritune import Adapter, Model

Command = TypeVar("Command", bound=Callable[..., Any])

DEVICE_HELP = (
    "auto: the best hardware GPU that WebGPU offers, otherwise the CPU (a software driver is never taken by itself). "
    "webgpu: the best WebGPU adapter, a software one too. webgpu:1: the adapter of this number in `tritune info`. "
    "webgpu:NAME: the first adapter whose name contains NAME. cpu: the CPU. numpy: the plain definitions, slow."
)
MODELS_OWN = "  [default: the model's generation_config]"

model_option = click.option(
    "-m", "--model", metavar="PATH|ID", help="A model's directory, a GGUF file or a Hugging Face id.  "
    "[default: the built-in model]",
)  # fmt: skip
ADAPTER_HELP = "a directory of PEFT or mlx-lm, a GGUF LoRA file or Hesper's"
adapters_option = click.option(
    "-a", "--adapter", "adapters", multiple=True, metavar="PATH[=WEIGHT]",
    help=f"Use this adapter ({ADAPTER_HELP}); with =0.7 behind it, 0.7 times its correction. Given repeatedly, the "
    "corrections are added.",
)  # fmt: skip
device_option = click.option("--device", default="auto", show_default=True, help=DEVICE_HELP)
threads_option = click.option("--threads", type=int, help="Threads on the CPU.  [default: its physical cores]")
template_option = click.option(
    "--chat-template",
    metavar="NAME|FILE",
    help="Chat template in the place of the model's own: bitnet, chatml, plain, or a file in Jinja2.",
)
context_option = click.option(
    "--context", type=click.IntRange(min=2), help="Most tokens of prompt and answer.  [default: the model's]"
)
profile_option = click.option(
    "--profile", is_flag=True, help="Print the time of each operation on the device to stderr; everything is slower."
)
head_option = click.option(
    "--head",
    type=click.Choice(["stored", "int8"]),
    default="stored",
    show_default=True,
    help="int8: hold the output head's rows in int8 (on the CPU): fewer bytes to read, not quite the same answers.",
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an adapter that is in the output folder.")
system_option = click.option("--system", metavar="TEXT", help="The system message.")

_SAMPLING = (
    click.option(
        "--max-tokens", "--max-new-tokens", "max_tokens", type=int,
        help="Most new tokens of an answer." + MODELS_OWN + ", else 256",
    ),
    click.option(
        "--temp", "--temperature", "temperature", type=float,
        help="Temperature; 0 always takes the likeliest token." + MODELS_OWN + ", else 0",
    ),
    click.option("--top-k", type=int, help="Draw from the K likeliest tokens; 0 = off." + MODELS_OWN),
    click.option("--top-p", type=float, help="Draw from the tokens that make up this share; 1 = off." + MODELS_OWN),
    click.option(
        "--min-p", type=float,
        help="Leave out tokens below this share of the likeliest one; 0 = off." + MODELS_OWN,
    ),
    click.option(
        "--repetition-penalty", type=float,
        help="Divides the scores of tokens that were there already; 1 = off." + MODELS_OWN,
    ),
    click.option("--seed", type=int, help="The same seed draws the same text.  [default: random]"),
    click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends an answer; may be given repeatedly."),
    click.option("--ignore-eos", is_flag=True, help="Go on after an end token, up to --max-tokens."),
)  # fmt: skip


def sampling_options(command: Command) -> Command:
    """The flags of how tokens are drawn; they arrive under the names of ``Model.stream``."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def load_model(
    model: str | None,
    device: str,
    chat_template: str | None = None,
    context: int | None = None,
    threads: int | None = None,
    head: Any = "stored",
) -> Model:
    """``tritune.load``, with progress."""
    import tritune

    return tritune.load(model, device, chat_template=chat_template, context=context, threads=threads, head=head)


def load_adapter(adapter: str | None, model: Model) -> Adapter | None:
    """The adapter of ``--adapter``, if there is one."""
    from tritune import Adapter

    return None if adapter is None else Adapter.load(adapter, model)


def load_adapters(given: Sequence[str], model: Model) -> Adapter | None:
    """The adapters of ``--adapter``, each with its weight, made one; None if there is none."""
    from tritune import Adapter
    from tritune.lora import as_one

    weighted = [weighted_path(text) for text in given]
    loaded = [(Adapter.load(path, model), weight) for path, weight in weighted]
    if len(loaded) == 1 and loaded[0][1] == 1:
        return loaded[0][0]
    return as_one(loaded or None)


def weighted_path(text: str) -> tuple[str, float]:
    """``PATH=WEIGHT`` or ``PATH``, whose weight is 1; a path that is there is taken whole. Raises UsageError."""
    path, equals, number = text.rpartition("=")
    if not equals or Path(text).exists():
        return text, 1.0
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        context = click.get_current_context(silent=True)
        raise click.UsageError(f"--adapter {text}: expected a number after =, found {number!r}", context)
    return path, weight


def say_what_is_missing(device: str) -> None:
    """Lines on stderr: when ``auto`` finds no GPU, why; where the CPU has only NumPy, how to get what is faster."""
    if device not in ("auto", "cpu"):
        return
    from tritune.cli.facts import device_facts

    facts = device_facts()
    if device == "auto":
        if facts["auto"] not in ("cpu", "numpy"):
            return
        note(f"no GPU is used: {facts['why']}")
    if facts["cpu"]["problem"] is not None:
        note(f"the CPU computes through NumPy, slowly: {facts['cpu']['problem']}")


@contextmanager
def profiled(model: Model, wanted: bool) -> Generator[None]:
    """Where ``--profile`` is given: take the times of what runs inside, and print them to stderr at the end."""
    if not wanted:
        yield
        return
    with model.backend.profile() as profile:
        try:
            yield
        finally:
            note(profile.table())


def checked_output(output: Path, overwrite: bool, resume: str | None = None) -> Path:
    """The output folder, if nothing that is in it would be lost; a run that is resumed goes on in it. Raises
    ConfigError."""
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output}: is a file; expected a folder or a new name")
    names = ("adapter_config.json", "adapter_model.safetensors", "log.jsonl")
    found = [name for name in names if (output / name).exists()]
    checkpoints = [path.name for path in sorted(output.glob("checkpoint-*"))]
    found += checkpoints
    if resume is not None and (checkpoints or "adapter_config.json" not in found):
        return output  # the library looks at the checkpoints; a run that was killed before its first one begins again
    if found and not overwrite:
        raise ConfigError(f"--output {output}: holds {found[0]} of another run; give --overwrite or another folder")
    return output


def tell_unused(model: Model, sampling: dict[str, Any]) -> None:
    """A line on stderr when flags of drawing are given but the likeliest token is always taken."""
    if model.settings(1, max_tokens=1, temperature=sampling["temperature"]).temperature > 0:
        return
    unused = [f"--{name.replace('_', '-')}" for name in ("top_k", "top_p", "min_p") if sampling[name] is not None]
    if unused:
        note(f"note: the temperature is 0, so {', '.join(unused)} changes nothing")


def drawn_seed(seed: int | None) -> int:
    """The seed given, or one drawn for this run."""
    import secrets

    return secrets.randbelow(2**32) if seed is None else seed


def checked_text(flag: str, text: str) -> str:
    """Text from the command line, of which the system may have handed over bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{flag}: the text is not UTF-8", click.get_current_context(silent=True)) from None
    return text
