"""``tritune chat``: a pipe's lines are turns, commands, interrupts, and the cache from turn to turn."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tritune
from command_line import Cli, finish, start
from tritune.cli import chat as module
from tritune.generation import Engine


@pytest.fixture
def chat(cli: Cli, tiny: Path) -> Cli:
    """Greedy answers of eight tokens from the tiny model."""

    def run(lines: str, *more: str | Path) -> Any:
        own = ["chat", "-m", tiny, "--device", "numpy", "--temp", "0", "--max-tokens", "8", "--ignore-eos"]
        return cli(*own, *more, stdin=lines.encode())

    return run


def expected(model: tritune.Model, *turns: str, **options: Any) -> str:
    talk = tritune.Chat(model, **{"max_tokens": 8, "ignore_eos": True, "temperature": 0.0} | options)
    return "".join("".join(talk.say(turn)) + "\n" for turn in turns)


def test_each_line_is_a_turn_that_remembers(chat: Cli, model: tritune.Model) -> None:
    drawn = {"temperature": 2.0, "seed": 3}
    result = chat("hello\n\nand you?\n", "--temp", "2", "--seed", "3")
    assert (result.code, result.err) == (0, "")
    assert result.out == expected(model, "hello", "and you?", **drawn)
    assert result.out != expected(model, "hello", **drawn) + expected(model, "and you?", **drawn)


def test_system_adapter_and_last_line_without_break(chat: Cli, model: tritune.Model, adapter: Path) -> None:
    loaded = tritune.Adapter.load(adapter, model)
    result = chat("hello", "--system", "be short", "--adapter", adapter)
    assert result.out == expected(model, "hello", system="be short", adapter=loaded)


def test_commands(chat: Cli, model: tritune.Model) -> None:
    result = chat("hello\n/reset\nand you?\n/help\n/what now\n/exit\nnever\n")
    assert result.out == expected(model, "hello") + expected(model, "and you?")
    assert "/reset" in result.err
    assert "/what: no such command" in result.err
    assert result.code == 0


def test_later_turns_feed_only_what_is_new(chat: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    feed = Engine._feed_prompt  # pyright: ignore[reportPrivateUsage]

    def counted(engine: Engine, prompt: list[int]) -> list[int]:
        rest = feed(engine, prompt)
        starts.append(len(prompt) - len(rest))
        return rest

    monkeypatch.setattr(Engine, "_feed_prompt", counted)
    chat("hello\nand you?\n")
    assert starts[0] == 0
    assert starts[1] > 10


def test_conversation_that_outgrows_the_context_can_be_reset(chat: Cli, model: tritune.Model) -> None:
    result = chat("hello\nhello\nhello\n/reset\nhello\n", "--context", "40")
    assert result.code == 2
    assert "the context holds 40; /reset starts anew" in result.err
    answer = expected(model, "hello")
    assert result.out.startswith(answer)
    assert result.out.endswith(answer)


def test_bad_values_are_told_before_the_first_turn(chat: Cli) -> None:
    assert "top_p" in chat("", "--top-p", "2").error
    assert "UTF-8" in chat("", "--system", "\udce9").error


def test_input_that_is_no_text(cli: Cli, tiny: Path) -> None:
    result = cli("chat", "-m", tiny, "--device", "numpy", stdin=b"\xff\n")
    assert "UTF-8" in result.error


def test_ctrl_c_interrupts_the_answer_only(tiny: Path) -> None:
    process = start("chat", "-m", tiny, "--device", "numpy", "--temp", "0", "--max-tokens", "200", "--ignore-eos")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    result = finish(process, "/reset\nhello\n")
    assert result.code == 0
    assert "Traceback" not in result.err
    cut, whole = result.out.splitlines()
    assert len(cut) < len(whole)


def typed(monkeypatch: pytest.MonkeyPatch, *events: str | type[BaseException]) -> None:
    """Stand in for a terminal: lines, and exceptions that a key raises."""
    feed: Iterator[str | type[BaseException]] = iter(events)

    def read(_prompt: str) -> str:
        event = next(feed)
        if isinstance(event, str):
            return event
        raise event

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True, raising=False)


@pytest.mark.parametrize(
    ("events", "code", "turns"),
    [
        (["hello", EOFError], 0, 1),
        ([KeyboardInterrupt, "hello", KeyboardInterrupt, EOFError], 0, 1),
        (["hello", KeyboardInterrupt, KeyboardInterrupt, "never"], 130, 1),
        (["/exit", "never"], 0, 0),
    ],
)
def test_terminal(
    events: list[Any], code: int, turns: int, monkeypatch: pytest.MonkeyPatch, model: tritune.Model,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)})())
    typed(monkeypatch, *events)
    talk = tritune.Chat(model, max_tokens=8, ignore_eos=True)
    assert module._converse(talk) == code  # pyright: ignore[reportPrivateUsage]
    assert capsys.readouterr().out == expected(model, "hello") * turns
