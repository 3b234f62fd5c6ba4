"""Ops of decoding on WebGPU, one by one: microseconds each, bytes a second, and whole decode steps.

An op is recorded once for every layer, each time with other weights, so that no cache holds them; what is printed is
the program's time on the device divided by the number of layers. ``--sweep`` times other splits of the work too.

python benchmarks/webgpu_ops.py                      (2B-4T shape; --small for a software renderer)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from random_model import SHAPE_2B4T, RandomSource
from wgpu.backends.wgpu_native._ffi import lib  # pyright: ignore

from tritune.backends.base import Buffer, LoRA, Program
from tritune.backends.webgpu import WebGPUBackend, few_rows, open_webgpu
from tritune.backends.webgpu.few_rows import GemvShape
from tritune.backends.webgpu.prepare import Dispatch
from tritune.backends.webgpu.weights import WebGPUTernary
from tritune.lora import AdapterPool
from tritune.models.batch import Piece
from tritune.models.bitnet import BitNet
from tritune.models.cache import BLOCK_SIZE, KVCache
from tritune.models.config import ModelConfig
from tritune.models.inference import InferenceState
from tritune.models.linears import linear_groups
from tritune.models.weights import FloatTable

RANK = 16
RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 1 << 32, 1 << 22, np.uint32)
SWEEP = {
    "qkv 1": [(128, 8, 2, 5), (128, 16, 1, 3)],
    "o 1": [(128, 8, 1, 5), (128, 16, 1, 3)],
    "gate_up 1": [(128, 8, 4, 5), (256, 8, 2, 5)],
    "down 1": [(128, 32, 1, 4), (128, 16, 1, 7), (128, 32, 2, 4)],
    "qkv 16": [(128, 8, 4, 1, 2), (128, 16, 4, 1, 4)],
    "gate_up 16": [(128, 8, 8, 1, 4), (128, 8, 8, 1, 2), (128, 16, 8, 1, 4)],
    "down 16": [(128, 16, 4, 1, 4), (128, 16, 8, 1, 4), (128, 16, 8, 1, 2)],
}
"""By matrix and rows: threads, lanes, tile, unroll, rows."""


class FastSource(RandomSource):
    """RandomSource whose embedding repeats itself, so that it takes no time to make."""

    def embedding(self) -> FloatTable:
        block = ((RNG.standard_normal(1 << 20, np.float32) * np.float32(0.02)).view(np.uint32) >> 16).astype(np.uint16)
        return FloatTable(np.resize(block, (self.config.vocab_size, self.config.hidden_size)), "bf16")


def random_codes(backend: WebGPUBackend, parts: Sequence[tuple[NDArray[np.int8], float]]) -> WebGPUTernary:
    """pack_ternary without the packing: other codes of the same shape."""
    sizes, columns = tuple(len(codes) for codes, _ in parts), parts[0][0].shape[1]
    shape = (sum(sizes), columns // 16)
    words = np.resize(np.roll(NOISE, int(RNG.integers(1 << 20))), shape)
    words &= ~((words & np.uint32(0xAAAAAAAA)) >> np.uint32(1))  # no code 3
    scales = tuple(scale for _, scale in parts)
    row_scales = np.repeat(np.array(scales, np.float32), sizes)
    buffers = backend.memory.empty_together([(words.shape, "u32"), (row_scales.shape, "f32")])
    for buffer, values in zip(buffers, (words, row_scales), strict=True):
        backend.write(buffer, values)
    return WebGPUTernary(*buffers, sizes, scales, columns)


class Bench:
    """A model, adapters and a state for ``rows`` rows."""

    def __init__(self, backend: WebGPUBackend, model: BitNet, rows: int, context: int) -> None:
        config = model.config
        self.backend, self.model, self.rows, self.context = backend, model, rows, context
        keys = [(layer, group.name) for layer in range(config.num_layers) for group in linear_groups(config)]
        self.pool = AdapterPool(backend, config, keys, RANK, rows, "f16" if backend.f16_adapters else "f32")
        noise = (NOISE.astype(np.float32) * np.float32(2.0**-38)) - np.float32(2.0**-7)
        backend.write(self.pool.flat, np.resize(noise, self.pool.flat.size))
        backend.write(self.pool._scales, np.full(self.pool._scales.size, 2, np.float32))
        blocks = -(-context // BLOCK_SIZE) + 1
        self.cache = KVCache(backend, config, rows * blocks)
        self.pieces = [
            Piece([1 + i], context - 1, slot=i + 1, blocks=tuple(range(i * blocks, (i + 1) * blocks)))
            for i in range(rows)
        ]

    def state(self, adapters: bool) -> InferenceState:
        pool = self.pool if adapters else None
        state = InferenceState(self.model, self.cache, max_rows=self.rows, max_sequences=self.rows, adapters=pool)
        vocabulary = self.model.config.vocab_size
        settings = np.tile(np.array([0, 1, 0, 1], np.float32), (self.rows, 1))
        zeros = np.zeros((self.rows, -(-vocabulary // 32)), np.uint32)
        state.set_sampling(settings, np.zeros((self.rows, 4), np.uint32), zeros)
        return state

    def decode(self, clock: Clock, adapters: bool, runs: int) -> tuple[float, float, float, int]:
        """Seconds a step on the device, with steps queued one behind the other, with the host waiting; dispatches."""
        state = self.state(adapters)
        programs = [state._prepare(self.pieces), state._sample_program(False)]
        clock.warm()
        queued = seconds(self.backend, lambda: self.backend.submit(programs), runs)
        state.forward_and_sample(self.pieces)
        clock.warm()
        start = time.perf_counter()
        for _ in range(runs):
            state.forward_and_sample(self.pieces)
        waiting = (time.perf_counter() - start) / runs
        dispatches = [dispatch for program in programs for dispatch in program.dispatches]
        return clock.seconds(dispatches, 10), queued, waiting, len(dispatches)


def seconds(backend: WebGPUBackend, run: Callable[[], None], runs: int) -> float:
    """Seconds of a run, the best of three series."""
    run()
    backend.synchronize()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(runs):
            run()
        backend.synchronize()
        best = min(best, (time.perf_counter() - start) / runs)
    return best


class Clock:
    """Time on the device, between two timestamps around one pass."""

    def __init__(self, backend: WebGPUBackend) -> None:
        self.backend, device = backend, backend.device
        self.queries: Any = device.handle.create_query_set(type="timestamp", count=2)
        self.resolved = backend.memory.create_buffer(16, "QUERY_RESOLVE|COPY_SRC")
        self.staging = backend.memory.create_buffer(16, "COPY_DST|MAP_READ")
        self.load: Program | None = None
        self.warm_seconds = 0.2
        self.tick = float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal)) * 1e-9

    def seconds(self, dispatches: Sequence[Dispatch], runs: int) -> float:
        """Of all dispatches, one after the other; the least of some runs."""
        self.warm()
        return min(self._run(dispatches) for _ in range(runs))

    def warm(self) -> None:
        """Work until the clocks have risen, which fall to a third while a device waits."""
        if self.load is not None:
            start = time.perf_counter()
            while time.perf_counter() - start < self.warm_seconds:
                self.load.run()
            self.backend.synchronize()

    def _run(self, dispatches: Sequence[Dispatch]) -> float:
        encoder: Any = self.backend.device.handle.create_command_encoder()
        stamps = {"query_set": self.queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
        compute = encoder.begin_compute_pass(timestamp_writes=stamps)
        for dispatch in dispatches:
            compute.set_pipeline(dispatch.pipeline)
            compute.set_bind_group(0, dispatch.group, dispatch.offsets)
            compute.dispatch_workgroups(*dispatch.grid)
        compute.end()
        encoder.resolve_query_set(self.queries, 0, 2, self.resolved, 0)
        encoder.copy_buffer_to_buffer(self.resolved, 0, self.staging, 0, 16)
        self.backend.device.queue.submit([encoder.finish()])
        start, end = self.backend.memory.map_and_copy(self.staging, 16).view(np.uint64).tolist()
        return (end - start) * self.tick


def timed(clock: Clock, record: Callable[[int], None], count: int, runs: int = 8) -> float:
    """Microseconds of one of ``count`` recorded ops."""
    with clock.backend.record() as program:
        for index in range(count):
            record(index)
    return clock.seconds(program.dispatches, runs) / count * 1e6


def line(name: str, rows: int, micros: float, size: int = 0) -> None:
    rate = f"{size / micros / 1e6:8.2f} TB/s" if size else ""
    print(f"{name:44} T={rows:<3} {micros:9.2f} us {rate}", flush=True)


def ops(bench: Bench, clock: Clock, sweep: bool) -> None:
    """Each op of a decode step."""
    backend, model, state = bench.backend, bench.model, bench.state(True)
    config, count = model.config, model.config.num_layers
    state._prepare(bench.pieces)
    rows, block, quant = state.rows.bucket(bench.rows), state._buffers.bucket(bench.rows), state._quant
    t, empty = bench.rows, backend.empty((64,))
    line("an empty dispatch", t, timed(clock, lambda _: backend.zero(empty), 300))
    inputs = {"qkv": block.normed, "o": block.o_normed, "gate_up": block.mid_normed, "down": block.z}
    raws = {"qkv": state._x, "o": block.o, "gate_up": state._x, "down": block.gate_up}
    outputs = {"qkv": block.qkv, "o": state._x, "gate_up": block.gate_up, "down": state._x}

    def quantised(width: int) -> tuple[Buffer, Buffer]:
        return quant.codes.view(0, (t, width)), quant.scales.view(0, (t,))

    def norm(group: str, gain: Buffer | None) -> None:
        x, normed = raws[group], inputs[group]
        assert normed is not None
        if group == "down":
            backend.glu_norm_quant(x, config.activation, gain, 1e-5, normed, *quantised(normed.shape[1]))
        else:
            backend.rms_norm_quant(x, gain, 1e-5, normed, *quantised(normed.shape[1]))

    def product(group: str, layer: int, lora: LoRA | None) -> None:
        weight, x = getattr(model.layers[layer], group), inputs[group]
        assert x is not None
        accumulate = group in ("o", "down")
        backend.linear(
            x, *quantised(weight.in_features), weight, outputs[group], rows, accumulate=accumulate, lora=lora
        )

    def lora_of(group: str, layer: int) -> LoRA | None:
        return bench.pool.lora(layer, group, block.down[group])

    gains = {"qkv": "input_norm", "o": "attn_sub_norm", "gate_up": "post_norm", "down": "ffn_sub_norm"}
    for group in inputs:
        size = model.layers[0].__getattribute__(group).words.nbytes
        alone = timed(clock, lambda i, g=group: product(g, i, None), count)
        line(f"{group}: product", t, alone, size)
        normed = timed(clock, lambda i, g=group: norm(g, getattr(model.layers[i], gains[g])), count)
        line(f"{group}: norm", t, normed)

        def both(i: int, g: str = group) -> None:
            norm(g, getattr(model.layers[i], gains[g]))
            product(g, i, lora_of(g, i))

        lora = lora_of(group, 0)
        assert lora is not None
        correction = t * (lora.a.size + lora.b.size) // lora.a.shape[0] * (2 if lora.a.dtype == "f16" else 4)
        line(f"{group}: norm and product with LoRA", t, timed(clock, both, count), size + correction)
        for shape in SWEEP.get(f"{group} {t}", ()) if sweep else ():
            chosen, few_rows.gemv_shape = few_rows.gemv_shape, lambda *_, s=shape, **__: GemvShape(*s)
            line(f"  {group}: {shape}", t, timed(clock, lambda i, g=group: product(g, i, None), count), size)
            few_rows.gemv_shape = chosen

    def attention(layer: int) -> None:
        k, v = bench.cache.k[layer], bench.cache.v[layer]
        assert block.q is not None
        backend.rope_cache(block.qkv, model.rope, rows, block.q, k, v, *model.heads)
        backend.paged_attention(block.q, k, v, rows, block.o, *model.heads)

    def attention_and_norm(layer: int) -> None:
        attention(layer)
        norm("o", model.layers[layer].attn_sub_norm)

    size = 4 * t * bench.context * config.kv_size
    line(f"attention at {bench.context}", t, timed(clock, attention, count), size)
    line("attention and its norm", t, timed(clock, attention_and_norm, count), size)
    options = backend.device.options
    for splits in (1, 2, 4, 8, 16) if sweep else ():
        backend.device.options = replace(options, attention_splits=splits)
        line(f"  attention and its norm: {splits} splits", t, timed(clock, attention_and_norm, count), size)
    backend.device.options = options
    head = state._head
    normed, logits, size = head._normed, head._logits, model.head.nbytes
    line("head", t, timed(clock, lambda _: backend.logits(normed, model.head, logits), 4), size)
    for shape in SWEEP.get(f"head {t}", ()) if sweep else ():
        chosen, few_rows.head_shape = few_rows.head_shape, lambda *_, s=shape, **__: GemvShape(*s)
        line(f"  head: {shape}", t, timed(clock, lambda _: backend.logits(normed, model.head, logits), 4), size)
        few_rows.head_shape = chosen

    def sample(_: int) -> None:
        backend.sample(logits, head._settings, head._state, head._seen, None, head.token, head.logprob)

    line("sample, greedy", t, timed(clock, sample, 4))
    backend.write(head._settings, np.tile(np.array([0.8, 0.95, 0, 1.1], np.float32), (t, 1)))
    line("sample, top-p", t, timed(clock, sample, 1, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="two thin layers, for a software renderer")
    parser.add_argument("--sweep", action="store_true", help="time other splits of the work too")
    parser.add_argument("--steps-only", action="store_true", help="only whole decode steps")
    args = parser.parse_args()
    config: ModelConfig = SHAPE_2B4T
    if args.small:
        config = replace(config, hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=1, head_dim=64)
        config = replace(config, num_layers=2, vocab_size=20000)
    backend = open_webgpu()
    print(backend.description)
    start = time.perf_counter()
    backend.pack_ternary = lambda parts: random_codes(backend, parts)  # type: ignore[method-assign]
    model = BitNet(backend, FastSource(config))
    print(f"model made in {time.perf_counter() - start:.1f} s", flush=True)
    clock = Clock(backend)
    x, out = backend.empty((1, config.hidden_size)), backend.empty((1, config.vocab_size))
    if not args.small:
        with backend.record() as clock.load:
            for _ in range(16):
                backend.logits(x, model.head, out)
    runs = 2 if args.small else 30
    for rows, context in ((1, 512), (1, 64), (16, 512)):
        bench = Bench(backend, model, rows, context)
        if not args.steps_only and context == 512:
            ops(bench, clock, args.sweep)
        for adapters in (True, False):
            device, queued, waiting, dispatches = bench.decode(clock, adapters, runs)
            name = f"decode step, context {context}, {'LoRA' if adapters else 'no LoRA'}"
            print(
                f"{name:44} T={rows:<3} {device * 1e6:9.1f} us, {rows / device:6.0f} tokens/s; queued "
                f"{rows / queued:6.0f}, host waiting {rows / waiting:6.0f} tokens/s; {dispatches} dispatches",
                flush=True,
            )


if __name__ == "__main__":
    main()
