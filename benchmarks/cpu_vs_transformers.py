"""tritune's CPU backend beside transformers + peft on the built-in model: decode, prefill, training, peak memory.

Each side runs in a process of its own with the same number of threads, the same tokens and an adapter of rank 16 on all
seven projections; transformers in float32 and in bfloat16, compiled as it compiles itself. One CSV line a figure:
figure, side, threads, value, unit, how many times better tritune is.

python benchmarks/cpu_vs_transformers.py --threads 2
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT, NEW = 64, 64
ROWS = 512
RANK = 16
SIDES = ("tritune", "float32", "bfloat16")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Run = Callable[[list[int]], float]


def tokens_of(count: int, seed: int) -> list[int]:
    """The same ids on each side."""
    import numpy as np

    return np.random.default_rng(seed).integers(5, 16000, count).tolist()


def peak_mib() -> float:
    """Peak resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def timed(run: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ours(threads: int, figure: str) -> Run:
    """tritune's way of doing a figure: ids -> seconds."""
    import numpy as np

    from tritune.assets import BUILTIN_MODEL
    from tritune.backends.base import OPTIMIZER_SETTINGS
    from tritune.backends.cpu import open_cpu
    from tritune.generation import GenerationSettings
    from tritune.lora import Adapter, LoRAConfig
    from tritune.model import Model
    from tritune.models.batch import Piece
    from tritune.models.training_state import MicroBatch, next_token_targets
    from tritune.models.weights import open_model

    model = Model(open_model(BUILTIN_MODEL), open_cpu(threads))
    if figure == "train":
        _, state = model.training_state(Adapter.create(model, LoRAConfig(rank=RANK)), ROWS, max_sequences=1)
        numbers = dict.fromkeys(OPTIMIZER_SETTINGS, 0.0)
        numbers |= {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "clip": 1.0}
        numbers |= {"one_minus_beta1": 0.1, "one_minus_beta2": 0.001}
        model.backend.write(state.settings, np.array(list(numbers.values()), np.float32))

        def step(ids: list[int]) -> None:
            targets = next_token_targets(ids, np.ones(len(ids), np.bool_))
            state.forward_backward(MicroBatch([Piece(ids, 0, 1)], targets), update=True)
            state.read_totals()

        return lambda ids: timed(lambda: step(ids))
    engine = model.engine()
    if figure == "prefill":
        return lambda ids: timed(lambda: next(engine.generate(ids, GenerationSettings(max_tokens=1))))

    def decode(ids: list[int]) -> float:
        stream = engine.generate(ids[:PROMPT], GenerationSettings(max_tokens=NEW + 1))
        next(stream)
        return timed(lambda: list(stream))

    return decode


def theirs(threads: int, figure: str, dtype: str) -> Run:
    """transformers' and peft's way of doing a figure: ids -> seconds."""
    import peft
    import torch
    import transformers

    from tritune.assets import BUILTIN_MODEL

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(BUILTIN_MODEL, dtype=getattr(torch, dtype))
    torch.nn.Module.to(model, getattr(torch, dtype))  # from_pretrained leaves the embedding as it is stored
    if figure == "train":
        lora = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=list(PROJECTIONS), task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, lora)
        model.train()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

        def step(ids: list[int]) -> None:
            batch = torch.tensor([ids])
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return lambda ids: timed(lambda: step(ids))
    model.eval()

    def prefill(ids: list[int]) -> float:
        with torch.inference_mode():
            return timed(lambda: model(input_ids=torch.tensor([ids]), logits_to_keep=1))

    def generate(ids: list[int], count: int) -> float:
        with torch.inference_mode():
            return timed(lambda: model.generate(
                input_ids=torch.tensor([ids[:PROMPT]]), max_new_tokens=count, min_new_tokens=count, do_sample=False,
                pad_token_id=0))  # fmt: skip

    if figure == "prefill":
        return prefill
    return lambda ids: generate(ids, NEW + 1) - generate(ids, 1)


def worker(side: str, figure: str, threads: int, repeats: int) -> dict[str, float]:
    """Median rate of a figure after two runs to warm up, and this process's peak memory."""
    run = ours(threads, figure) if side == "tritune" else theirs(threads, figure, side)
    for seed in (100, 101):
        run(tokens_of(ROWS, seed))
    seconds = statistics.median(run(tokens_of(ROWS, seed)) for seed in range(repeats))
    return {"rate": (NEW if figure == "decode" else ROWS) / seconds, "peak": peak_mib()}


def main() -> None:
    """A process for each side and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--figures", nargs="+", choices=("decode", "prefill", "train"), default=["decode", "prefill", "train"]
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        with contextlib.redirect_stdout(sys.stderr):
            found = worker(options.worker, options.figures[0], options.threads, options.repeats)
        json.dump(found, sys.stdout)
        return
    out = csv.writer(sys.stdout)
    for figure in options.figures:
        own: dict[str, float] = {}
        for side in SIDES:
            command = [sys.executable, __file__, "--worker", side, "--figures", figure]
            command += ["--threads", str(options.threads), "--repeats", str(options.repeats)]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            own = own or found
            out.writerow(
                [
                    figure,
                    side,
                    options.threads,
                    f"{found['rate']:.5g}",
                    "tokens/s",
                    f"{own['rate'] / found['rate']:.2f}",
                ]
            )
            out.writerow([f"{figure}, peak memory of the process", side, options.threads, f"{found['peak']:.5g}", "MiB",
                          f"{found['peak'] / own['peak']:.2f}"])  # fmt: skip
            sys.stdout.flush()


if __name__ == "__main__":
    main()
