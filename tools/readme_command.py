"""Print the n-th ``sh`` block of README.md, so that CI runs what a reader would run.

python tools/readme_command.py 1     # install, and the main job
python tools/readme_command.py 2     # install, and the tests
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
FENCED = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Return the contents of the blocks fenced as ``sh``, in order."""
    return [match.group(1).strip() for match in FENCED.finditer(text)]


def main(arguments: list[str]) -> int:
    """Print the block whose number, counted from 1, is the only argument; 2 for a number that is not there."""
    found = commands(README.read_text(encoding="utf-8"))
    if len(arguments) != 1 or arguments[0] not in {str(number + 1) for number in range(len(found))}:
        sys.stderr.write(f"usage: readme_command.py N, with N from 1 to {len(found)}; got {' '.join(arguments)!r}\n")
        return 2
    sys.stdout.write(found[int(arguments[0]) - 1] + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
