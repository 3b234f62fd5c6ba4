"""What README.md says is there, is there: commands, flags, links, and the Python that it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tritune.assets import BUILTIN_MODEL
from tritune.cli.main import commands

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"(?:^ {4}|`|/bin/)tritune ((?:(?:adapter|data) )?[a-z]+)([^`]*)")  # as code, not in a sentence
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
ROWS = re.findall(r'^    (\{".*\})$', README, re.MULTILINE)


def blocks(language: str) -> list[str]:
    """Contents of the fenced blocks of a language."""
    return [block.strip() for block in re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]


def stated_flags() -> dict[str, set[str]]:
    """Flags that the README names, by command. Its table of settings belongs to ``train``."""
    flags = dict[str, set[str]]()
    for line in README.splitlines():
        for command, rest in COMMAND.findall(line):
            flags.setdefault(command, set()).update(FLAG.findall(rest))
        if line.startswith("| `-"):
            flags.setdefault("train", set()).update(FLAG.findall(line.split("|")[1]))
    return flags


def run_tritune(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with lines wide enough for no flag to be wrapped."""
    code = "import sys; from tritune.cli.main import main; sys.exit(main())"
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=120
    )


def test_two_commands_install_and_run() -> None:
    demo, tests = blocks("sh")
    assert demo == "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/tritune demo"
    assert tests == "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"


def test_ci_runs_the_commands_as_they_are_written() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for number, block in enumerate(blocks("sh"), start=1):
        assert f"tools/readme_command.py {number}" in script
        tool = [sys.executable, str(ROOT / "tools" / "readme_command.py"), str(number)]
        assert subprocess.run(tool, capture_output=True, text=True, check=True).stdout.strip() == block


@pytest.mark.parametrize(("command", "flags"), sorted(stated_flags().items()))
def test_commands_and_flags_exist(command: str, flags: set[str]) -> None:
    shown = run_tritune(*command.split(), "--help")
    assert shown.returncode == 0, shown.stderr
    assert flags <= set(FLAG.findall(shown.stdout))


def test_every_command_is_named() -> None:
    assert {"demo", "train", "generate", "chat", "info", "eval", "adapter convert"} <= set(stated_flags())
    assert {command.split()[0] for command in stated_flags()} == set(commands.commands)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert targets
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []


def test_demo_row_count_is_as_stated() -> None:
    rows = BUILTIN_MODEL.with_name("demo.jsonl").read_text(encoding="utf-8").splitlines()
    assert f"on {len(rows)} small rows" in README


@pytest.mark.parametrize("row", ROWS, ids=lambda row: next(iter(json.loads(row))))
def test_python_example_runs(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example as written, with the built-in model in the place of one that must be downloaded."""
    (example,) = blocks("python")
    assert '"microsoft/bitnet-b1.58-2B-4T"' in example
    (tmp_path / "rows.jsonl").write_text(row + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(example.replace("microsoft/bitnet-b1.58-2B-4T", str(BUILTIN_MODEL)), "README.md", "exec"), {})
    assert (tmp_path / "my-adapter" / "adapter_model.safetensors").is_file()
    assert capsys.readouterr().out.strip()


def test_both_kinds_of_row_are_shown() -> None:
    assert [sorted(json.loads(row)) for row in ROWS] == [["messages"], ["input", "instruction", "output"]]
