"""The main job on the built-in model and one device: load, prefill, decode, train; prints one CSV line per figure.

python benchmarks/end_to_end.py --device webgpu --steps 20
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Callable

import tritune
from tritune.assets import DEMO_HELDOUT_ROWS, DEMO_ROWS
from tritune.training import Callback, StepLog, mean_loss

Row = Callable[[str, float, str], None]

QUESTIONS = ("What is the capital of Italy?", "What is the opposite of hot?", "Name a baby dog.")


class Losses(Callback):
    """Keeps what the run logs."""

    def __init__(self) -> None:
        self.logs: list[StepLog] = []

    def on_log(self, log: StepLog) -> None:
        self.logs.append(log)


def commit() -> str:
    """The commit of the working tree, if it is one."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()
    out = csv.writer(sys.stdout)
    start = time.perf_counter()
    model = tritune.load(device=options.device)
    device = model.backend.description

    def row(figure: str, value: float, unit: str) -> None:
        out.writerow([figure, f"{value:.6g}", unit, device, commit()])
        sys.stdout.flush()

    row("load", time.perf_counter() - start, "s")
    start = time.perf_counter()
    model.generate("Hello.", max_tokens=2, ignore_eos=True)
    row("first tokens (programs made)", time.perf_counter() - start, "s")
    decode(model, None, options.tokens, row, "decode, base")
    ids = [5 + i % 500 for i in range(513)]
    model.generate(ids, max_tokens=1)
    start = time.perf_counter()
    model.generate([7, *ids[1:]], max_tokens=1)
    row("prefill 513", len(ids) / (time.perf_counter() - start), "tokens/s")

    losses = Losses()
    config = tritune.TrainConfig(lr=options.lr, max_steps=options.steps, batch_tokens=options.batch_tokens, log_every=1)
    untrained = mean_loss(model, tritune.Adapter.create(model), DEMO_HELDOUT_ROWS, config)
    submits = model.backend.stats.submits
    start = time.perf_counter()
    adapter = tritune.train(model, DEMO_ROWS, tritune.LoRAConfig(), config, callbacks=[losses])
    seconds = time.perf_counter() - start
    row("train", sum(log.rows for log in losses.logs) / seconds, "tokens/s")
    row("train, submits per step", (model.backend.stats.submits - submits) / options.steps, "")
    for log in losses.logs:
        row(f"loss at step {log.step}", log.loss, "nats/token")
    row("held-out loss before", untrained, "nats/token")
    row("held-out loss after", mean_loss(model, adapter, DEMO_HELDOUT_ROWS, config), "nats/token")
    decode(model, adapter, options.tokens, row, "decode, adapter")
    for question in QUESTIONS:
        before, after = (model.generate(question, a, max_tokens=40) for a in (None, adapter))
        print(f"# {question!r} base {before!r} adapter {after!r}")
    model.close()


def decode(model: tritune.Model, adapter: tritune.Adapter | None, tokens: int, row: Row, name: str) -> None:
    """Tokens a second after the first, greedy."""
    stream = model.stream("Tell me a story.", adapter, max_tokens=tokens, ignore_eos=True)
    pieces = iter(stream)
    next(pieces, None)
    start, first = time.perf_counter(), stream.num_tokens
    for _ in pieces:
        pass
    row(name, (stream.num_tokens - first) / (time.perf_counter() - start), "tokens/s")


if __name__ == "__main__":
    main()
