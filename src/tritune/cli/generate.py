"""``tritune generate``: one prompt, one answer, streamed to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tritune.cli.errors import note
from tritune.cli.options import (
    adapters_option,
    checked_text,
    context_option,
    device_option,
    drawn_seed,
    head_option,
    load_adapters,
    load_model,
    model_option,
    profile_option,
    profiled,
    sampling_options,
    system_option,
    tell_unused,
    template_option,
    threads_option,
)

if TYPE_CHECKING:
    from tritune import Model, TextStream


@click.command()
@model_option
@adapters_option
@click.option("-p", "--prompt", required=True, metavar="TEXT", help="What to answer; - reads it from standard input.")
@system_option
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without a chat template.")
@sampling_options
@context_option
@device_option
@threads_option
@head_option
@template_option
@profile_option
@click.option("-v", "--verbose", is_flag=True, help="Print device, tokens per second and finish reason to stderr.")
def generate(
    model: str | None,
    adapters: Sequence[str],
    prompt: str,
    system: str | None,
    raw: bool,
    seed: int | None,
    stop: Sequence[str],
    context: int | None,
    device: str,
    threads: int | None,
    head: str,
    chat_template: str | None,
    profile: bool,
    verbose: bool,
    **sampling: Any,
) -> None:
    """Answer one prompt, with an adapter or without.

    The text goes to standard output as it comes, everything else to standard error.
    """
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, which --raw leaves out")
    text = _read_stdin() if prompt == "-" else checked_text("--prompt", prompt)
    messages: Any = text
    if system is not None:
        messages = [
            {"role": "system", "content": checked_text("--system", system)},
            {"role": "user", "content": text},
        ]
    stops = [checked_text("--stop", item) for item in stop]
    chosen = drawn_seed(seed)
    loaded = load_model(model, device, chat_template, context, threads, head)
    stream = loaded.stream(messages, load_adapters(adapters, loaded), seed=chosen, stop=stops, raw=raw, **sampling)
    tell_unused(loaded, sampling)
    started = time.perf_counter()
    with profiled(loaded, profile):
        first = write_answer(stream)
    if verbose:
        _show_statistics(loaded, stream, chosen, first - started, time.perf_counter() - first)


def write_answer(pieces: TextStream) -> float:
    """Write the pieces to stdout as they come, and a line break if the last has none; the time of the first piece."""
    last, first = "", 0.0
    try:
        for piece in pieces:
            first = first or time.perf_counter()
            click.echo(piece, nl=False)
            last = piece
    finally:  # Ctrl-C too
        if not last.endswith("\n"):
            click.echo()
    return first or time.perf_counter()


def _show_statistics(model: Model, stream: TextStream, seed: int, waited: float, seconds: float) -> None:
    rate = f", {(stream.num_tokens - 1) / seconds:.1f} tokens/s" if stream.num_tokens > 1 and seconds > 0 else ""
    note(f"device: {model.backend.description}")
    note(f"prompt: {stream.num_prompt_tokens} tokens, first text after {waited:.2f} s")
    note(f"answer: {stream.num_tokens} tokens{rate}, finish reason {stream.finish_reason}, seed {seed}")


def _read_stdin() -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"--prompt -: standard input is not UTF-8 (byte {error.start})") from None
    return text.removesuffix("\n").removesuffix("\r")
