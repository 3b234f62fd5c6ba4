"""The CPU backend on random weights of the 2B-4T shape: decode, prefill, training, LoRA's cost, memory.

Beside each figure stands its floor: what the machine, measured in the same run, could do at most. One CSV line a
figure: figure, threads, value, unit, the most the machine could do, the figure's share of that, device, commit.

python benchmarks/cpu_backend.py --threads 1 2
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from random_model import SHAPE_2B4T, RandomSource

from tritune.backends.base import OPTIMIZER_SETTINGS
from tritune.backends.cpu import open_cpu
from tritune.backends.cpu.backend import CpuBackend
from tritune.generation import Engine, Engines, GenerationSettings
from tritune.lora import Adapter, AdapterPool, LoRAConfig
from tritune.models.batch import Piece
from tritune.models.bitnet import BitNet
from tritune.models.config import ModelConfig
from tritune.models.training_state import MicroBatch, TrainingState, next_token_targets
from tritune.models.weights import projection_shapes

PROMPT, NEW = 64, 64
PREFILL = TRAINED = 512
RANK = 16
GB, GIB = 1e9, 2**30
FIGURES = ("decode", "prefill", "lora", "train")


@dataclass(frozen=True)
class Machine:
    """What all threads together do at most, a second."""

    read: float  # bytes
    dot: float  # 8-bit multiply-adds
    fma: float  # float32 multiply-adds


@dataclass(frozen=True)
class Work:
    """Multiply-adds of a token, and bytes that it reads, by what they are."""

    ternary: float
    head: float
    lora: float
    ternary_bytes: float
    head_bytes: float
    lora_bytes: float

    @classmethod
    def of(cls, backend: CpuBackend, model: BitNet, rank: int) -> Work:
        """The head's bytes are those that greedy sampling reads."""
        config = model.config
        shapes = projection_shapes(config).values()
        weights = [w for layer in model.layers for w in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        lora = config.num_layers * rank * sum(rows + columns for rows, columns in shapes)
        return cls(
            ternary=config.num_layers * sum(rows * columns for rows, columns in shapes),
            head=config.vocab_size * config.hidden_size,
            lora=lora,
            ternary_bytes=sum(weight.nbytes for weight in weights),
            head_bytes=backend.sampling_bytes(model.head),
            lora_bytes=4 * lora,
        )


def attention(config: ModelConfig, rows: int) -> float:
    """Multiply-adds of causal attention over ``rows`` rows in all layers, forward."""
    return config.num_layers * config.num_heads * config.head_dim * rows * (rows + 1)


class Report:
    """Prints the lines."""

    def __init__(self, threads: int, device: str) -> None:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        self._tail = [device, found.stdout.strip() or "unknown"]
        self._threads = threads
        self._out = csv.writer(sys.stdout)

    def row(self, figure: str, value: float, unit: str, most: float | None = None) -> None:
        beside = ["", ""] if most is None else [f"{most:.4g}", f"{value / most:.3f}"]
        self._out.writerow([figure, self._threads, f"{value:.5g}", unit, *beside, *self._tail])
        sys.stdout.flush()


class Peak:
    """Peak resident memory since ``reset``, above what the process held when it was made."""

    def __init__(self) -> None:
        self._base = self._read("VmRSS")

    def reset(self) -> None:
        """Linux begins a new peak when told so."""
        Path("/proc/self/clear_refs").write_text("5")

    def gib(self) -> float:
        return (self._read("VmHWM") - self._base) / GIB

    def _read(self, name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


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
    prompt = np.random.default_rng(seed).integers(0, engine.state.model.config.vocab_size, PROMPT).tolist()
    tokens = engine.generate(prompt, settings(NEW))
    next(tokens)
    start = time.perf_counter()
    count = sum(1 for _ in tokens)
    return count / (time.perf_counter() - start)


def prefill(engine: Engine, seed: int) -> float:
    """Tokens of a prompt a second, up to the first new token."""
    prompt = np.random.default_rng(seed).integers(0, engine.state.model.config.vocab_size, PREFILL).tolist()
    start = time.perf_counter()
    next(engine.generate(prompt, settings(1)))
    return PREFILL / (time.perf_counter() - start)


def median(run: Callable[[int], float], repeats: int) -> float:
    """After one run to warm up."""
    run(1000)
    return statistics.median(run(seed) for seed in range(repeats))


def make_adapter(config: ModelConfig) -> Adapter:
    """All seven projections; B is not zero."""

    class Named:
        name = config.name

        def __init__(self) -> None:
            self.config = config

    adapter = Adapter.create(Named(), LoRAConfig(rank=RANK))
    adapter.parameters[:] = np.random.default_rng(1).standard_normal(adapter.parameters.size, np.float32) * 0.02
    return adapter


def training_step(backend: CpuBackend, model: BitNet) -> Callable[[int], float]:
    """A function that takes a step and returns tokens a second."""
    adapter = make_adapter(model.config)
    pool = AdapterPool.for_adapters(backend, [adapter])
    state = TrainingState(model, pool, pool.flat, max_rows=TRAINED, max_sequences=1)
    numbers = dict.fromkeys(OPTIMIZER_SETTINGS, 0.0) | {
        "lr": 1e-5,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "clip": 1.0,
    }
    numbers |= {"one_minus_beta1": 0.1, "one_minus_beta2": 0.001}
    backend.write(state.settings, np.array(list(numbers.values()), np.float32))

    def step(seed: int) -> float:
        tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, TRAINED).tolist()
        batch = MicroBatch([Piece(tokens, 0, 1)], next_token_targets(tokens, np.ones(TRAINED, np.bool_)))
        start = time.perf_counter()
        state.forward_backward(batch, update=True)
        state.read_totals()
        return TRAINED / (time.perf_counter() - start)

    return step


def measure(threads: int, figures: list[str], repeats: int, layers: int | None) -> None:
    """All figures of a number of threads, in this process."""
    peak = Peak()
    backend = open_cpu(threads)
    report = Report(threads, backend.description)
    machine = measure_machine(backend, report)
    config = SHAPE_2B4T if layers is None else SHAPE_2B4T.__class__(**{**vars(SHAPE_2B4T), "num_layers": layers})
    start = time.perf_counter()
    model = BitNet(backend, RandomSource(config))
    report.row("load (random weights made and packed)", time.perf_counter() - start, "s")
    report.row("peak memory while loading", peak.gib(), "GiB above the interpreter")
    peak.reset()
    engines = Engines(model, 1024, "f16")
    engine = engines.get(None)
    work = Work.of(backend, model, RANK)
    plain = None
    if "decode" in figures or "lora" in figures:
        plain = median(lambda seed: decode(engine, seed), repeats)
        most = machine.read / (work.ternary_bytes + work.head_bytes)
        report.row(f"decode, {NEW} tokens after {PROMPT}", plain, "tokens/s", most)
        report.row("peak memory, decode", peak.gib(), "GiB above the interpreter")
    if "prefill" in figures:
        speed = median(lambda seed: prefill(engine, seed), repeats)
        seconds = PREFILL * work.ternary / machine.dot + attention(config, PREFILL) / machine.fma
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
        speed = median(training_step(backend, model), repeats)
        by_dot = 2 * TRAINED * work.ternary  # forward, and again in backward
        by_fma = TRAINED * (work.ternary + 2 * work.head + 4 * work.lora) + 4.5 * attention(config, TRAINED)
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
