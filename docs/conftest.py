"""Run every code block of these pages, in order, each page in an empty folder of its own.

``python`` blocks of a page share their names; ``sh`` blocks are run by bash as a reader would paste them. The model ids
that the pages name stand in a Hugging Face cache, offline: the built-in model takes the place of the large one.
"""

from __future__ import annotations

import gc
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from tritune.assets import BUILTIN_MODEL
from tritune.cli import main as command_line

ROOT = Path(__file__).resolve().parents[1]
LARGE_MODEL = "microsoft/bitnet-b1.58-2B-4T"
README_COMMANDS = ROOT / "tools" / "readme_command.py"


def install_command() -> str:
    """The README's first command, which CI runs in an environment of its own."""
    command = [sys.executable, str(README_COMMANDS), "1"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def hub_cache(folder: Path) -> None:
    """Lay a cache as huggingface_hub does after downloading LARGE_MODEL."""
    entry = folder / "hub" / f"models--{LARGE_MODEL.replace('/', '--')}"
    commit = "0" * 40
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text(commit)
    (entry / "snapshots").mkdir()
    (entry / "snapshots" / commit).symlink_to(BUILTIN_MODEL, target_is_directory=True)


def begin(namespace: dict[str, Any]) -> None:
    """Give a page its folder, a Hugging Face cache, and ``tritune`` on the path."""
    folder = tempfile.TemporaryDirectory(prefix="tritune-docs-")
    work, tools, hub = (Path(folder.name) / name for name in ("work", "bin", "huggingface"))
    for path in (work, tools, hub):
        path.mkdir()
    hub_cache(hub)
    script = tools / "tritune"
    code = f"import sys; from {command_line.__name__} import main; sys.exit(main())"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
    script.chmod(0o755)
    changed = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HF_HOME": str(hub),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(Path(folder.name) / "cache"),
    }
    namespace["_before"] = (folder, Path.cwd(), {name: os.environ.get(name) for name in changed})
    os.environ.update(changed)
    os.chdir(work)


def end(namespace: dict[str, Any]) -> None:
    """Put everything back."""
    folder, directory, variables = namespace.pop("_before")
    os.chdir(directory)
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name)
        else:
            os.environ[name] = value
    folder.cleanup()
    namespace.clear()  # a page's models go now, not after the interpreter's last line
    gc.collect()


def run_in_shell(example: Example) -> str | None:
    """Run a block as a script that stops at its first error; what it printed is the report of a failure."""
    block = str(example.parsed).strip()
    if block == install_command():
        return None
    shell = ["bash", "-euo", "pipefail", "-c", block]
    done = subprocess.run(shell, text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=240)
    if done.returncode == 0:
        return None
    return f"{block}\nended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), CodeBlockParser("sh", run_in_shell)],
    pattern="*.md",
    setup=begin,
    teardown=end,
).pytest()
