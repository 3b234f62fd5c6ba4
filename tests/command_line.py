"""The command line in a process of its own, and how a command ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CODE = "import sys; from tritune.cli.main import main; sys.exit(main())"


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of an error; nothing else may stand on either stream."""
        assert self.out == ""
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.code != 0
        return self.err.removeprefix("error: ").strip()


Cli = Callable[..., Result]


def start(*arguments: str | Path, **variables: str | None) -> subprocess.Popen[str]:
    """Start a command, with environment variables set or (None) removed."""
    changed = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | variables
    environment = {name: value for name, value in changed.items() if value is not None}
    command = [sys.executable, "-c", CODE, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def finish(process: subprocess.Popen[str], stdin: str | None = None) -> Result:
    """Wait for a started command."""
    out, err = process.communicate(stdin, timeout=120)
    return Result(process.returncode, out, err)
