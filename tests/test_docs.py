"""The documentation's pages as a whole. Their code blocks are run by docs/conftest.py."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

import tritune
from tritune.cli.main import commands

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^\s*```(.*)$", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_run_or_is_output(page: Path) -> None:
    opening = FENCE.findall(page.read_text(encoding="utf-8"))[::2]
    assert set(opening) <= {"python", "sh", "text"}


def test_every_page_is_in_the_navigation() -> None:
    shown = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w/-]+\.md)$", shown, re.MULTILINE))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES}
    assert yaml.safe_load(shown)["strict"] is True  # a broken link or a missing name ends the build


def test_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: tritune\.(\w+)$", page, re.MULTILINE)) == set(tritune.__all__)


def test_flags_that_the_pages_name_exist() -> None:
    def flags_of(command: click.Command) -> set[str]:
        own = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        return own.union(*map(flags_of, inner))

    known = flags_of(commands) | {"--help"}
    lines = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines() if "tritune" in line]
    assert lines
    assert {flag for line in lines for flag in FLAG.findall(line)} <= known
