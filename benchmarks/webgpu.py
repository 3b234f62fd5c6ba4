"""The WebGPU backend on random weights of the 2B-4T shape: decode, prefill, training, LoRA's cost, memory, start-up.

Beside each figure stands its floor: the bytes that it must move at the device's copy bandwidth, or the operations that
it must do at the rate of a plain f32 matrix product, both measured in the same run. Memory is the sum of all buffers
at that moment. One CSV line a figure: figure, value, unit, the most that the floor allows, the figure's share of that,
device, commit.

python benchmarks/webgpu.py                                       # all figures, on the best GPU
python benchmarks/webgpu.py --figures decode train-512            # some of them
python benchmarks/webgpu.py --device webgpu --layers 2 --scale 10 # a look at the script itself, on a software driver
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ceilings import WARM_UP, Ceilings, measure_ceilings, timed
from memory import GIB
from random_model import SHAPE_2B4T, RandomSource, smaller
from workload import GB, RANK, Report, Work, make_adapter, random_tokens, training_step

from tritune.backends.webgpu import open_webgpu
from tritune.backends.webgpu.backend import WebGPUBackend
from tritune.backends.webgpu.buffers import WebGPUBuffer
from tritune.generation import Engine, Engines, GenerationSettings
from tritune.lora import Adapter, AdapterPool
from tritune.models.batch import Piece
from tritune.models.bitnet import BitNet, Layer, gain_buffers
from tritune.models.cache import BLOCK_SIZE, CachedSequence, KVCache
from tritune.models.config import ModelConfig
from tritune.models.footprint import weight_bytes
from tritune.models.inference import InferenceState

CONTEXT = 4096
PROMPT = 64
BATCH = 16
Thing = TypeVar("Thing")


@dataclass
class Bench:
    """What a figure needs."""

    backend: WebGPUBackend
    model: BitNet
    work: Work
    most: Ceilings
    report: Report
    options: argparse.Namespace

    def memory(self, figure: str) -> None:
        self.report.row(f"memory, {figure}", self.backend.stats.bytes_allocated / GIB, "GiB")

    def median(self, run: Callable[[int, int], float], count: int, least: int = 1) -> float:
        """Of runs of ``count`` (tokens, steps) with a seed each, after some of the ``least`` count to warm up.

        There are ``--repeats`` of them, fewer where they take longer than ``--seconds``.
        """
        start = time.perf_counter()
        while time.perf_counter() - start < WARM_UP:
            run(1000, least)
        found, start = [run(0, count)], time.perf_counter()
        while len(found) < self.options.repeats and time.perf_counter() - start < self.options.seconds:
            found.append(run(len(found), count))
        return statistics.median(found)

    def adapter(self, seed: int = 1) -> Adapter:
        return make_adapter(self.model.config, seed)


def random_model(backend: WebGPUBackend, config: ModelConfig) -> BitNet:
    """One layer of random weights goes the way of a real one; the others are copies of what it became.

    So each layer has memory of its own, as it must be for the figures to be true, and the model is there in seconds.
    """
    model = BitNet(backend, RandomSource(replace(config, num_layers=1)))
    backend.reserve(weight_bytes(replace(config, num_layers=config.num_layers - 1)))  # as BitNet does
    model.config = config
    first, contents = model.layers[0], dict[int, Any]()
    model.layers += [copied(backend, first, contents) for _ in range(config.num_layers - 1)]
    for index, gains in enumerate(gain_buffers(backend, config)):  # which lie side by side in a real model
        for name, buffer in gains.items():
            backend.write(buffer, contents[id(getattr(first, name))])
        model.layers[index] = replace(model.layers[index], **gains)
    return model


def copied(backend: WebGPUBackend, thing: Thing, contents: dict[int, Any]) -> Thing:
    """A layer, a weight or a buffer in memory of its own, with the same contents; those are read once."""
    if isinstance(thing, WebGPUBuffer):
        if id(thing) not in contents:
            contents[id(thing)] = backend.read(thing)
        other: Any = backend.empty(thing.shape, thing.dtype)
        backend.write(other, contents[id(thing)])
        return other
    if isinstance(thing, tuple | list):
        return type(thing)(copied(backend, item, contents) for item in thing)
    if not hasattr(thing, "__dict__"):
        return thing
    other = copy.copy(thing)
    for name, value in vars(thing).items():
        if isinstance(thing, Layer) or isinstance(value, WebGPUBuffer | tuple | list):
            object.__setattr__(other, name, copied(backend, value, contents))
    return other


# -- decode ---------------------------------------------------------------------------------------------------------
def decode(bench: Bench, engine: Engine, name: str, lora_bytes: float) -> float:
    """Tokens a second after the first, greedy, context 64 to 64 + new; the floor reads everything once a token."""

    def run(seed: int, new: int) -> float:
        tokens = engine.generate(random_tokens(bench.model.config, PROMPT, seed), GenerationSettings(max_tokens=new))
        next(tokens)
        return (new - 1) / timed(lambda: sum(1 for _ in tokens))

    new, work = bench.options.new, bench.work
    speed = bench.median(run, new, least=4)
    read = work.ternary_bytes + work.head_bytes + lora_bytes + work.cache_bytes(PROMPT + new / 2)
    bench.report.row(f"decode {name}, context {PROMPT} to {PROMPT + new}", speed, "tokens/s", bench.most.copy / read)
    bench.memory(f"decode {name}")
    return speed


def decode_figures(bench: Bench) -> None:
    engines = Engines(bench.model, CONTEXT, "f16")
    plain = decode(bench, engines.get(None), "without adapter", 0)
    engines.clear()
    adapted = decode(bench, engines.get(bench.adapter()), f"with LoRA, rank {RANK}", bench.work.lora_bytes)
    bench.report.row("LoRA's cost in decode", 100 * (plain / adapted - 1), "% of the time without")


def host_figures(bench: Bench) -> None:
    """What the host does for a decoded token: to encode, finish and submit its dispatches, nothing else.

    With an idle device, after which the host's caches are cold, and while tokens are decoded one behind the other
    (where a software driver keeps the host until it has room).
    """
    engine = Engines(bench.model, CONTEXT, "f16").get(bench.adapter())
    list(engine.generate(random_tokens(bench.model.config, PROMPT, 0), GenerationSettings(max_tokens=4)))
    state, sequence = engine.state, CachedSequence(engine.state.cache)
    sequence.reserve(PROMPT)

    def submit(position: int) -> float:
        return timed(lambda: state.feed_drawn([Piece([0], position, engine.slot, 1.0, sequence.blocks)]))

    def median(wait: Callable[[], object]) -> float:
        submit(1)
        submit(2)
        found = list[float]()
        for position in range(3, PROMPT):
            wait()
            found.append(submit(position))
        return statistics.median(found[8:])

    with bench.backend.profile() as profile:
        submit(1)
    dispatches = sum(kernel.calls for op in profile.ops.values() for kernel in op.kernels.values())
    bench.report.row("dispatches of a decoded token, with LoRA", dispatches, "")
    bench.report.row("host time a dispatch", 1e6 * median(bench.backend.synchronize) / dispatches, "µs")
    seconds = median(lambda: state.drawn(1, previous=True))
    bench.report.row("host time a dispatch while decoding", 1e6 * seconds / dispatches, "µs")


def batch_figures(bench: Bench) -> None:
    """Sequences of the same length side by side, each with an adapter of its own."""
    model, backend, new = bench.model, bench.backend, bench.options.new
    pool = AdapterPool.for_adapters(backend, [bench.adapter(seed) for seed in range(BATCH)], rounded=True)
    cache = KVCache(backend, model.config, BATCH * -(-(PROMPT + new) // BLOCK_SIZE))
    state = InferenceState(model, cache, max_rows=PROMPT * 2, max_sequences=BATCH, adapters=pool)

    def run(seed: int, new: int) -> float:
        sequences = [CachedSequence(cache) for _ in range(BATCH)]
        for slot, sequence in enumerate(sequences, 1):
            tokens = random_tokens(model.config, PROMPT, seed * BATCH + slot)
            sequence.extend(tokens)
            state.forward([Piece(tokens, 0, slot, 1.0, sequence.blocks)])

        def pieces() -> list[Piece]:
            for sequence in sequences:
                sequence.extend([0])  # the device knows the token
            return [Piece([0], len(s.tokens) - 1, slot, 1.0, s.blocks) for slot, s in enumerate(sequences, 1)]

        def decode() -> None:
            for _ in range(new - 1):
                state.feed_drawn(pieces())
                state.drawn(BATCH, previous=True)
            state.drawn(BATCH)

        state.submit_and_sample(pieces())
        return BATCH * (new - 1) / timed(decode)

    speed, work = bench.median(run, new, least=4), bench.work
    each = work.lora_bytes + work.cache_bytes(PROMPT + new / 2)
    read = work.ternary_bytes + work.head_bytes + BATCH * each
    name = f"decode batch {BATCH}, {BATCH} adapters"
    bench.report.row(name, speed, "tokens/s", BATCH * bench.most.copy / read)
    bench.memory(name)


# -- prefill and training -------------------------------------------------------------------------------------------
def prefill_figures(bench: Bench, rows: int) -> None:
    """Tokens of a prompt a second, up to the first new token, with an adapter."""
    engines = Engines(bench.model, CONTEXT, "f16")
    engine = engines.get(bench.adapter())

    def run(seed: int, _: int) -> float:
        prompt = random_tokens(bench.model.config, rows, seed)
        return rows / timed(lambda: next(engine.generate(prompt, GenerationSettings(max_tokens=1))))

    speed, work = bench.median(run, 1), bench.work
    products = rows * (work.ternary + work.lora) + work.attention(rows) + work.head
    bench.report.row(f"prefill {rows}", speed, "tokens/s", rows * bench.most.flops / (2 * products))
    bench.memory(f"prefill {rows}")


def train_figures(bench: Bench, sequences: int, rows: int, recompute: bool) -> None:
    """Rows a second of optimizer steps that follow each other without waiting."""
    step = training_step(bench.backend, bench.model, rows, sequences=sequences, recompute=recompute)
    total, work = sequences * rows, bench.work

    def run(seed: int, count: int) -> float:
        def steps() -> None:
            for number in range(count):
                step(seed * count + number)
            bench.backend.synchronize()

        return count * total / timed(steps)

    speed, again = bench.median(run, bench.options.steps), 1 if recompute else 0
    products = total * ((2 + again) * work.ternary + 2 * work.head + (3 + again) * work.lora)
    products += sequences * (3.5 + again) * work.attention(rows)
    name = f"training step {sequences} x {rows}, {'recomputing' if recompute else 'keeping activations'}"
    bench.report.row(name, speed, "tokens/s", total * bench.most.flops / (2 * products))
    bench.memory(name)


FIGURES: dict[str, Callable[[Bench], None]] = {
    "train-512": lambda bench: train_figures(bench, 1, 512, recompute=True),
    "train-512-keep": lambda bench: train_figures(bench, 1, 512, recompute=False),
    "train-8x512": lambda bench: train_figures(bench, 8, 512, recompute=True),
    "decode": decode_figures,
    "decode-16": batch_figures,
    "host": host_figures,
    "prefill-512": lambda bench: prefill_figures(bench, 512),
    "prefill-2048": lambda bench: prefill_figures(bench, 2048),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--figures", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    parser.add_argument("--repeats", type=int, default=3, help="of which the median counts, after one to warm up")
    parser.add_argument("--seconds", type=float, default=4, help="after which a figure is not repeated any more")
    parser.add_argument("--new", type=int, default=448, help="tokens that are decoded")
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps that are timed together")
    parser.add_argument("--layers", type=int, help="fewer layers than the 2B-4T has")
    parser.add_argument("--scale", type=int, default=1, help="divides all widths")
    parser.add_argument("--profile", action="store_true", help="time of each op to stderr; figures are off then")
    parser.add_argument("--commit", help="where the tree is no git repository")
    options = parser.parse_args()

    start = time.perf_counter()
    backend = open_webgpu(options.device)
    report = Report(backend.description, commit=options.commit)
    report.row("start-up, device opened", time.perf_counter() - start, "s")
    model = random_model(backend, smaller(SHAPE_2B4T, options.layers, options.scale))
    backend.synchronize()
    report.row("start-up, random weights on the device", time.perf_counter() - start, "s")
    next(Engines(model, CONTEXT, "f16").get(None).generate([1, 2, 3], GenerationSettings(max_tokens=1)))
    report.row("start-up, first token", time.perf_counter() - start, "s")
    most = measure_ceilings(backend.device)
    report.row("copy, read and written", most.copy / GB, "GB/s")
    report.row("f32 matrix product", most.flops / GB, "GFLOP/s")
    bench = Bench(backend, model, Work.of(model), most, report, options)
    for figure in options.figures:
        gc.collect()
        if not options.profile:
            FIGURES[figure](bench)
            continue
        with backend.profile() as profile:
            FIGURES[figure](bench)
        print(f"{figure}\n{profile.table()}", file=sys.stderr, flush=True)
    backend.close()


if __name__ == "__main__":
    main()
