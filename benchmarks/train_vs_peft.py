"""Fine-tuning the built-in model on Alpaca rows, in tritune and in peft + transformers: are the loss curves one?

On the CPU in float32: the same rows in the same order, the same initial adapter, schedule and optimizer. Rounding off:
the largest relative distance of the losses at a step. Rounding on, which amplifies the noise of float sums: the root
mean square distance from transformers, beside that of transformers (eager attention) from itself (sdpa). One CSV line
a figure: figure, value, unit, bar; then the curves.

python benchmarks/train_vs_peft.py alpaca.json --steps 50
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch

import tritune
from oracles.curves import apart, distance, our_run, peft_curve
from oracles.reference import Reference, identity
from tritune.assets import BUILTIN_MODEL

BAR_OFF, BAR_ON = 1e-3, 1.5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", help="a JSON list of Alpaca rows")
    parser.add_argument("--count", type=int, default=400, help="how many of them")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = list(itertools.islice(json.loads(Path(options.rows).read_text(encoding="utf-8")), options.count))
    config = tritune.TrainConfig(
        max_steps=options.steps, batch_tokens=options.batch_tokens, max_seq_len=options.batch_tokens, log_every=1
    )
    out = csv.writer(sys.stdout)

    def tell(*cells: Any) -> None:
        out.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in cells])
        sys.stdout.flush()

    lora = tritune.LoRAConfig()
    curves: dict[str, list[float]] = {}
    for activations in ("float", "int8"):
        model = tritune.load(device="cpu", activations=activations, threads=options.threads)
        run = our_run(model, rows, lora, config)
        curves[f"tritune {activations}"] = run.losses
        start = tritune.Adapter.create(model, lora, seed=config.seed)
        for attention in ("eager", "sdpa"):
            forward = identity if activations == "float" else None
            reference = Reference(BUILTIN_MODEL, attention)
            curves[f"{attention} {activations}"] = peft_curve(reference, start, run.steps, config, forward)[0]
        ours, eager, sdpa = (curves[f"{side} {activations}"] for side in ("tritune", "eager", "sdpa"))
        if activations == "float":
            tell("rounding off, largest relative distance", apart(ours, eager), "", BAR_OFF)
            tell("rounding off, transformers from itself", apart(sdpa, eager), "", "")
        else:
            gap = distance(sdpa, eager)
            nearest = min(distance(ours, eager), distance(ours, sdpa))
            tell("rounding on, distance", nearest, "nats/token", "")
            tell("rounding on, transformers from itself", gap, "nats/token", "")
            tell("rounding on, ratio", nearest / gap, "", BAR_ON)
        model.close()
    tell("step", *curves)
    for step in range(options.steps):
        tell(step + 1, *(curve[step] for curve in curves.values()))


if __name__ == "__main__":
    main()
