"""``tritune chat``: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tritune.cli.errors import INTERRUPTED, note
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
    sampling_options,
    system_option,
    tell_unused,
    template_option,
    threads_option,
)
from tritune.errors import ContextLengthError, InputError

if TYPE_CHECKING:
    from tritune import Chat

HELP = "/reset forgets the conversation, /exit leaves (as Ctrl-D does); Ctrl-C interrupts an answer."


@click.command()
@model_option
@adapters_option
@system_option
@sampling_options
@context_option
@device_option
@threads_option
@head_option
@template_option
def chat(
    model: str | None,
    adapters: Sequence[str],
    system: str | None,
    seed: int | None,
    stop: Sequence[str],
    context: int | None,
    device: str,
    threads: int | None,
    head: str,
    chat_template: str | None,
    **sampling: Any,
) -> int:
    """Talk with a model, with an adapter or without.

    /reset forgets the conversation, /help lists the commands, /exit or Ctrl-D leaves. Ctrl-C interrupts an answer. From
    a pipe, each line is one turn.
    """
    from tritune import Chat

    said = None if system is None else checked_text("--system", system)
    stops = [checked_text("--stop", item) for item in stop]
    loaded = load_model(model, device, chat_template, context, threads, head)
    loaded_adapter = load_adapters(adapters, loaded)
    # A value that cannot be used is told now, not at the first turn.
    loaded.settings(1, seed=drawn_seed(seed), ignore_eos=sampling["ignore_eos"], **_numbers(sampling))
    tell_unused(loaded, sampling)
    talk = Chat(loaded, loaded_adapter, said, seed=drawn_seed(seed), stop=stops, **sampling)
    if sys.stdin.isatty():
        note(f"{loaded.name} on {loaded.backend.description}. {HELP}")
    return _converse(talk)


def _numbers(sampling: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sampling.items() if name != "ignore_eos"}


def _converse(talk: Chat) -> int:
    """Turn after turn; the exit code: of the last error, 0 without one."""
    code, warned = 0, False
    while True:
        try:
            line = _read_line()
            warned = False
        except KeyboardInterrupt:
            if warned:
                click.echo(err=True)
                return INTERRUPTED
            warned = True
            note("\n(Ctrl-C again or Ctrl-D leaves)")
            continue
        if line is None or line in ("/exit", "/quit"):
            return code
        if line.startswith("/"):
            _command(talk, line)
        elif line:
            code = _turn(talk, line) or code


def _command(talk: Chat, line: str) -> None:
    if line == "/reset":
        talk.reset()
        note("(the conversation starts anew)")
    elif line == "/help":
        note(HELP)
    else:
        note(f"{line.split()[0]}: no such command; {HELP}")


def _turn(talk: Chat, line: str) -> int:
    """One question and its answer; an error of this turn only is told and its exit code returned."""
    try:
        with _first_interrupt() as interrupted:
            for piece in talk.say(line):
                click.echo(piece, nl=False)
                if interrupted:
                    break
        click.echo()
    except ContextLengthError as error:
        note(f"error: {error}; /reset starts anew")
        return error.exit_code
    except KeyboardInterrupt:
        click.echo()
    return 0


@contextmanager
def _first_interrupt() -> Generator[list[bool]]:
    """A list that Ctrl-C puts something into, so that an answer ends between two tokens; a second one raises."""
    pressed: list[bool] = []

    def press(_number: int, _frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _read_line() -> str | None:
    """The next line without the white space around it; None at the end of the input."""
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            _use_readline()
            return input("> ").strip()
        if sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        return line.strip() if line else None
    except EOFError:
        click.echo(err=True)
        return None
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 (byte {error.start} of what was read)") from None


def _use_readline() -> None:
    """Line editing and a history that ends with the process, where Python has readline."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")
