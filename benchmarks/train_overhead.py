"""The training loop beside the device: what share of a step of the built-in model goes into data, logging, progress and
the host's part of a micro-batch, on the CPU. One CSV line a figure: figure, value, unit, bar.

The time on the device is that of submitting programs, waiting for them and reading from them; all the rest of the time
between the first step and the last is the loop's. Evaluation and checkpoints are left out: they are asked for.

python benchmarks/train_overhead.py --steps 20 --threads 2
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

import tritune
from tritune.assets import DEMO_ROWS
from tritune.training import Callback, RunStart, TerminalProgress

BAR = 3.0


class DeviceTime:
    """Adds up the seconds inside a backend's submits and reads."""

    def __init__(self, backend: Any) -> None:
        self.seconds = 0.0
        self._depth = 0
        for name in ("submit", "synchronize", "read"):
            setattr(backend, name, self._timed(getattr(backend, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            self._depth += 1
            begun = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - begun

        return timed


class Steps(Callback):
    """Wall and device seconds of each step, told after all other callbacks."""

    def __init__(self, device: DeviceTime) -> None:
        self.device = device
        self.marks: list[tuple[float, float]] = []

    def on_start(self, start: RunStart) -> None:
        self._mark()

    def on_step(self, step: int) -> None:
        self._mark()

    def _mark(self) -> None:
        self.marks.append((time.perf_counter(), self.device.seconds))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    model = tritune.load(device="cpu", threads=options.threads)
    device = DeviceTime(model.backend)
    steps = Steps(device)
    config = tritune.TrainConfig(max_steps=options.steps, batch_tokens=options.batch_tokens, log_every=1)
    progress = TerminalProgress(Console(file=io.StringIO(), force_terminal=True))
    with tempfile.TemporaryDirectory() as folder:
        tritune.train(model, DEMO_ROWS, config=config, output=Path(folder), callbacks=[progress, steps])
    pairs = list(zip(steps.marks[1:], steps.marks[2:], strict=False))  # the first step makes things that stay
    wall = [after[0] - before[0] for before, after in pairs]
    loop = [w - (after[1] - before[1]) for w, (before, after) in zip(wall, pairs, strict=True)]
    out = csv.writer(sys.stdout)
    out.writerow(["a step", f"{1000 * statistics.median(wall):.4g}", "ms", ""])
    out.writerow(["the loop's part of it", f"{1000 * statistics.median(loop):.4g}", "ms", ""])
    out.writerow(["the loop's share", f"{100 * sum(loop) / sum(wall):.3g}", "%", BAR])
    model.close()


if __name__ == "__main__":
    main()
