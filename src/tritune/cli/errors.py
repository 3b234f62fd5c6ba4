"""Errors of a command: one line on stderr and an exit code; only what nobody expected keeps its traceback."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn, TextIO

import click

from tritune.errors import TrituneError

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells have it."""


def exit_code_of(run: Callable[[], object]) -> int:
    """Run a command (click's, with standalone_mode off) and say how it ended."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            result = run()
            sys.stdout.flush()
            return result if isinstance(result, int) else 0
        except TrituneError as error:
            return _fail(str(error), error.exit_code)
        except click.UsageError as error:
            hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
            return _fail(error.format_message() + hint, error.exit_code)
        except click.ClickException as error:
            return _fail(error.format_message(), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            note("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            return _reader_gone()


def note(message: str) -> None:
    """Something to know that is no result: a line on stderr."""
    click.echo(message, err=True)


def stop(message: str, code: int) -> NoReturn:
    """End the command with a line on stderr that is not an error's."""
    note(message)
    raise click.exceptions.Exit(code)


def _fail(message: str, code: int) -> int:
    note("error: " + " ".join(message.splitlines()))
    return code


def _reader_gone() -> int:
    """The program that read our output has ended (``| head``): nothing more can be written, also not at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
    line: str | None = None,
) -> None:  # fmt: skip
    note(f"warning: {message}")
