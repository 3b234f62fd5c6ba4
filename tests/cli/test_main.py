"""The command itself: help, version, unknown flags, warnings, and errors that nobody expected."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

import tritune
from command_line import Cli, finish, start
from tritune.cli.errors import exit_code_of
from tritune.cli.main import commands


def test_help_lists_every_command(cli: Cli) -> None:
    result = cli("--help")
    assert (result.code, result.err) == (0, "")
    assert all(f"\n  {name} " in result.out for name in ("train", "generate", "chat", "info", "demo"))


def test_version(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritune.cli.main.metadata.version", lambda _name: "1.2.3")
    assert cli("--version").out == "tritune 1.2.3\n"


@pytest.mark.parametrize("command", sorted(commands.commands))
def test_help_of_a_command(command: str, cli: Cli) -> None:
    result = cli(command, "-h")
    assert (result.code, result.err) == (0, "")
    for parameter in commands.commands[command].params:
        for flag in parameter.opts:
            assert flag in result.out


@pytest.mark.parametrize("command", sorted(commands.commands))
def test_unknown_flag_is_an_error(command: str, cli: Cli) -> None:
    result = cli(command, "--no-such-flag")
    assert "--no-such-flag" in result.error
    assert f"tritune {command} --help" in result.error
    assert result.code == 2


def test_unknown_command_is_an_error(cli: Cli) -> None:
    assert "finetune" in cli("finetune").error


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from tritune.cli.main import main; main(['train', '--help']); "
        "print([m for m in ('wgpu', 'gguf', 'huggingface_hub', 'torch') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (tritune.ConfigError("x"), 2),
        (tritune.ContextLengthError("x"), 2),
        (tritune.OutOfMemoryError("x"), 3),
        (tritune.DeviceLostError("x"), 3),
        (tritune.TrainingError("x\ny"), 4),
        (tritune.TrituneError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise error

    assert exit_code_of(run) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_what_nobody_expected_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code_of(lambda: 1 // 0)


def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        warnings.simplefilter("default")
        warnings.warn("made for another", stacklevel=1)

    assert exit_code_of(run) == 0
    assert capsys.readouterr().err == "warning: made for another\n"


def test_module_runs_as_a_process() -> None:
    result = finish(start("generate"))
    assert "--prompt" in result.error
    assert result.code == 2
