"""The CPU backend on random weights of the 2B-4T shape: decode, prefill, training, LoRA's cost, memory.

Beside each figure stands its floor: what the machine, measured in the same run, could do at most. One CSV line a
figure: figure, threads, value, unit, the most the machine could do, the figure's share of that, device, commit.

python benchmarks/cpu_backend.py --threads 1 2
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from memory import Peak
from random_model import SHAPE_2B4T, RandomSource, smaller
from workload import GB, RANK, Report, Work, make_adapter, random_tokens, training_step

from tritune.backends.cpu import open_cpu
from tritune.backends.cpu.backend import CpuBackend
from tritune.generation import Engine, Engines, GenerationSettings
from tritune.models.bitnet import BitNet

PROMPT, NEW = 64, 64
PREFILL = TRAINED = 512
FIGURES = ("decode", "prefill", "lora", "train")


@dataclass(frozen=True)
class Machine:
    """What all threads together do at most, a second."""

    read: float  # bytes
    dot: float  # 8-bit multiply-adds
    fma: float  # float32 multiply-adds


def measure_machine(backend: CpuBackend, report: Report) -> Machine:
    """Memory and arithmetic at their best, on the backend's own threads and instruction set."""
    memory = backend.empty((1 << 28,), "i8")
    memory.array[...] = 1
    pool, native = backend._pool, backend.native
    machine = Machine(
        read=native.measure_read(pool, memory.address, memory.nbytes, 1.5),
        dot=native.measure_dot(pool, 0.5),
        fma=native.measure_fma(pool, 0.5),
    )
    report.row("memory, read", machine.read / GB, "GB/s")
    report.row("8-bit dot products", machine.dot / GB, "GMAC/s")
    report.row("float32 FMA", machine.fma / GB, "GMAC/s")
    return machine


def settings(tokens: int) -> GenerationSettings:
    """Greedy."""
    return GenerationSettings(max_tokens=tokens)


def decode(engine: Engine, seed: int) -> float:
    """Tokens a second after the first."""
    prompt = random_tokens(engine.state.model.config, PROMPT, seed)
    tokens = engine.generate(prompt, settings(NEW))
    next(tokens)
    start = time.perf_counter()
    count = sum(1 for _ in tokens)
    return count / (time.perf_counter() - start)


def prefill(engine: Engine, seed: int) -> float:
    """Tokens of a prompt a second, up to the first new token."""
    prompt = random_tokens(engine.state.model.config, PREFILL, seed)
    start = time.perf_counter()
    next(engine.generate(prompt, settings(1)))
    return PREFILL / (time.perf_counter() - start)


def median(run: Callable[[int], float], repeats: int) -> float:
    """After one run to warm up."""
    run(1000)
    return statistics.median(run(seed) for seed in range(repeats))


def timed_training_step(backend: CpuBackend, model: BitNet) -> Callable[[int], float]:
    """A function that takes a step and returns tokens a second."""
    step = training_step(backend, model, TRAINED)

    def timed(seed: int) -> float:
        start = time.perf_counter()
        step(seed)
        backend.synchronize()
        return TRAINED / (time.perf_counter() - start)

    return timed


def measure(threads: int, figures: list[str], repeats: int, layers: int | None) -> None:
    """All figures of a number of threads, in this process."""
    peak = Peak()
    backend = open_cpu(threads)
    report = Report(backend.description, threads)
    machine = measure_machine(backend, report)
    config = smaller(SHAPE_2B4T, layers)
    start = time.perf_counter()
    model = BitNet(backend, RandomSource(config))
    report.row("load (random weights made and packed)", time.perf_counter() - start, "s")
    report.row("peak memory while loading", peak.gib(), "GiB above the interpreter")
    peak.reset()
    engines = Engines(model, 1024, "f16")
    engine = engines.get(None)
    work = Work.of(model, head_bytes=backend.sampling_bytes(model.head))
    plain = None
    if "decode" in figures or "lora" in figures:
        plain = median(lambda seed: decode(engine, seed), repeats)
        most = machine.read / (work.ternary_bytes + work.head_bytes)
        report.row(f"decode, {NEW} tokens after {PROMPT}", plain, "tokens/s", most)
        report.row("peak memory, decode", peak.gib(), "GiB above the interpreter")
    if "prefill" in figures:
        speed = median(lambda seed: prefill(engine, seed), repeats)
        seconds = PREFILL * work.ternary / machine.dot + work.attention(PREFILL) / machine.fma
        report.row(f"prefill {PREFILL}", speed, "tokens/s", PREFILL / seconds)
        report.row("peak memory, prefill", peak.gib(), "GiB above the interpreter")
    if "lora" in figures and plain is not None:
        adapted = engines.get(make_adapter(config))
        speed = median(lambda seed: decode(adapted, seed), repeats)
        again = median(lambda seed: decode(engine, seed), repeats)
        most = machine.read / (work.ternary_bytes + work.head_bytes + work.lora_bytes)
        report.row(f"decode with LoRA, rank {RANK}, seven projections", speed, "tokens/s", most)
        report.row("LoRA's cost in decode", 100 * (again / speed - 1), "% of the time without")
    engines.clear()
    if "train" in figures:
        peak.reset()
        speed = median(timed_training_step(backend, model), repeats)
        by_dot = 2 * TRAINED * work.ternary  # forward, and again in backward
        by_fma = TRAINED * (work.ternary + 2 * work.head + 4 * work.lora) + 4.5 * work.attention(TRAINED)
        report.row(f"training step, LoRA rank {RANK}, {TRAINED} tokens", speed, "tokens/s",
                   TRAINED / (by_dot / machine.dot + by_fma / machine.fma))  # fmt: skip
        report.row("peak memory, training", peak.gib(), "GiB above the interpreter")
    backend.close()


def main() -> None:
    """A process for each number of threads, so that peaks of memory are its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--repeats", type=int, default=5, help="of which the median counts, after one to warm up")
    parser.add_argument("--layers", type=int, help="fewer layers than the 2B-4T has, for a quick look")
    options = parser.parse_args()
    if len(options.threads) == 1:
        measure(options.threads[0], options.figures, options.repeats, options.layers)
        return
    rest = ["--figures", *options.figures, "--repeats", str(options.repeats)]
    if options.layers is not None:
        rest += ["--layers", str(options.layers)]
    for threads in options.threads:
        subprocess.run([sys.executable, __file__, "--threads", str(threads), *rest], check=True)


if __name__ == "__main__":
    main()
