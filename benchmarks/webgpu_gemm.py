"""Time of each matrix product and attention of a WebGPU device at a model's shapes: ms, TFLOP/s, share of a ceiling.

    python benchmarks/webgpu_gemm.py [--rows 512,2048] [--ops linear,lora,head,attention,rows] [--tiles]

--tiles tries every tile and split for the products instead of the plan that tritune takes. An op is recorded many
times in one program, so that a figure is the device's and not the host's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from random_model import SHAPE_2B4T

from tritune.backends.base import LoRA, LoRAGrad, Rows
from tritune.backends.webgpu import WebGPUBackend, open_webgpu
from tritune.backends.webgpu.attention_tiles import AttentionTile
from tritune.backends.webgpu.tiles import Plan, Tile
from tritune.errors import DeviceError
from tritune.models.config import ModelConfig
from tritune.models.linears import LinearGroup, linear_groups

CEILING = 39e12  # FLOP/s of an f32 product of 4096³ on an H200, measured
RANK = 16
TILES = (
    Tile(128, 128, 16, 8, 8),
    Tile(128, 128, 8, 8, 8),
    Tile(64, 128, 16, 8, 8),
    Tile(128, 64, 16, 8, 8),
    Tile(64, 128, 16, 4, 8),
    Tile(64, 64, 16, 8, 8),
    Tile(64, 64, 16, 8, 4),
    Tile(64, 64, 16, 4, 4),
    Tile(64, 128, 32, 8, 8),
    Tile(64, 64, 32, 8, 8),
)
ATTENTION_TILES = (
    AttentionTile(4, 16, 1, True),
    AttentionTile(4, 16, 2, True),
    AttentionTile(8, 16, 2, True),
    AttentionTile(8, 16, 3, True),
    AttentionTile(4, 16, 4, True),
)
SPLITS = (1, 2, 3, 4, 6, 8)


class Bench:
    """Runs ops and prints a row for each."""

    def __init__(self, backend: WebGPUBackend, config: ModelConfig, seconds: float) -> None:
        self.backend = backend
        self.config = config
        self.seconds = seconds
        self.rng = np.random.default_rng(0)

    def time(self, op: Callable[[], None]) -> float:
        """Seconds of one run of ``op``, the best of three programs of as many as take ``seconds``."""
        count = 1
        while True:
            with self.backend.record() as program:
                for _ in range(count):
                    op()
            spent: list[float] = []
            for _ in range(4):  # the first run compiles
                start = time.perf_counter()
                program.run()
                self.backend.synchronize()
                spent.append(time.perf_counter() - start)
            best = min(spent[1:])
            if best >= self.seconds or count >= 256:
                return best / count
            count = min(256, max(count + 1, int(count * 1.2 * self.seconds / best)))

    def row(self, name: str, op: Callable[[], None], flops: float = 0, note: str = "") -> float:
        """Print a row; returns the seconds."""
        try:
            seconds = self.time(op)
        except DeviceError as error:  # one kernel that a device refuses must not cost the others' figures
            print(f"{name:34} {type(error).__name__}: {str(error)[:300]}", flush=True)
            return float("inf")
        rate = f"{flops / seconds / 1e12:6.2f} TFLOP/s {flops / seconds / CEILING:5.0%}" if flops else ""
        print(f"{name:34} {seconds * 1e3:9.4f} ms  {rate}  {note}", flush=True)
        return seconds

    def floats(self, *shape: int) -> Any:
        """A buffer of small random numbers."""
        values = self.rng.standard_normal(int(np.prod(shape[1:])), np.float32)
        return self.backend.upload(np.broadcast_to(values.reshape(shape[1:]), shape).copy())

    def rows_of(self, count: int, length: int) -> Rows:
        """``count`` rows in sequences of ``length``, all of adapter 1."""
        upload = self.backend.upload
        index = np.arange(count)
        block = 16
        blocks = -(-length // block)
        tables = np.arange(-(-count // length) * blocks).reshape(-1, blocks)
        return Rows(
            tokens=upload(index % 1000, "i32"),
            positions=upload(index % length, "i32"),
            sequence=upload(index // length, "i32"),
            q_start=upload(np.arange(0, count + 1, length), "i32"),
            slot=upload(np.ones(count), "i32"),
            multiplier=upload(np.ones(count)),
            block_tables=upload(tables, "i32"),
        )


def plans(bench: Bench, explore: bool, m: int, n: int, k: int) -> Iterator[str]:
    """Set each plan to try in turn; its name."""
    if not explore:
        yield str(tuple(bench.backend.plan_gemm(m, n, k)))
        return
    own = bench.backend.plan_gemm
    for tile in TILES:
        tiles = -(-m // tile.rows) * -(-n // tile.columns)
        threads = tile.rows * tile.columns // (tile.thread_rows * tile.thread_columns)
        for splits in SPLITS:
            if (splits > 1 and tiles * splits * threads > 132 * 2048) or 4 * m * n * splits > 32 << 20:
                continue
            bench.backend.plan_gemm = lambda *_, tile=tile, splits=splits: Plan(tile, splits)
            yield f"{tuple(tile)} / {splits}"
    bench.backend.plan_gemm = own


def linear(bench: Bench, rows: Rows, count: int, explore: bool, group: LinearGroup) -> None:
    """Forward and backward of a ternary product."""
    backend, k, n = bench.backend, group.in_features, group.out_features
    weight = backend.pack_ternary([(bench.rng.integers(-1, 2, (p, k), np.int8), 0.02) for p in group.parts])
    codes = backend.upload(bench.rng.integers(-127, 128, (count, k), np.int8), "i8")
    scales, x, y = backend.upload(np.ones(count)), bench.floats(count, k), bench.floats(count, n)
    flops = 2.0 * count * n * k
    ops = {
        f"{group.name} {count}": (
            (count, n, k),
            lambda: backend.linear(x, codes, scales, weight, y, rows, accumulate=True),
        ),
        f"{group.name} {count} dx": ((count, k, n), lambda: backend.linear_backward(y, x, weight, rows, dx=x)),
    }
    for title, (size, op) in ops.items():
        results = [(bench.row(title, op, flops, name), name) for name in plans(bench, explore, *size)]
        for seconds, name in sorted(results)[: 6 if explore else 0]:
            print(f"BEST {title}: {name} {flops / seconds / 1e12:.2f} TFLOP/s", flush=True)


def lora(bench: Bench, rows: Rows, count: int, group: LinearGroup) -> None:
    """What LoRA adds to a linear, kernel by kernel: the others' dispatches are left out."""
    backend, k, n, parts = bench.backend, group.in_features, group.out_features, len(group.parts)
    width = parts * RANK
    weight = backend.pack_ternary([(np.zeros((p, k), np.int8), 1.0) for p in group.parts])
    x, y = bench.floats(count, k), bench.floats(count, n)
    adapter = LoRA(
        bench.floats(1, width, k),
        bench.floats(1, n, RANK),
        backend.upload(np.ones((1, parts))),
        RANK,
        bench.floats(count, width),
        bench.floats(count, width),
    )
    grad = LoRAGrad(bench.floats(1, width, k), bench.floats(1, n, RANK))
    dispatch = backend.dispatch
    wanted, seen = "", [""]

    def only(name: str, **arguments: Any) -> None:
        if name == wanted:
            seen[:] = [f"{tuple(arguments['variant']['tile'])} {arguments['grid']}"]
            dispatch(name, **arguments)

    def forward() -> None:
        backend.linear(x, None, None, weight, y, rows, lora=adapter)

    def backward() -> None:
        backend.linear_backward(y, x, weight, rows, dx=x, lora=adapter, grad=grad)

    wide, deep = 2.0 * count * n * RANK, 2.0 * count * width * k
    kernels = {"down": (forward, deep), "up": (forward, wide), "down_grad": (backward, wide)}
    kernels |= {"grad_b": (backward, wide), "grad_a": (backward, deep), "dx": (backward, deep)}
    backend.dispatch = only
    for kernel, (op, flops) in kernels.items():
        wanted = f"lora_{kernel}_gemm"
        bench.row(f"{group.name} {count} {kernel}", op, flops)
        print("    " + seen[0])
    del backend.dispatch


def head(bench: Bench, count: int, explore: bool) -> None:
    """A chunk of the head: logits, loss, and back."""
    backend, config = bench.backend, bench.config
    vocabulary, hidden = config.vocab_size, config.hidden_size
    bits = (bench.rng.standard_normal((1024, hidden), np.float32).view(np.uint32) >> 16).astype(np.uint16)
    table = backend.table(np.tile(bits, (-(-vocabulary // 1024), 1))[:vocabulary], "bf16")
    x, logits = bench.floats(count, hidden), bench.floats(count, vocabulary)
    targets, ones = backend.upload(np.arange(count), "i32"), backend.upload(np.ones(count))
    nll = backend.empty((count,))
    flops = 2.0 * count * vocabulary * hidden
    for name in plans(bench, explore, count, vocabulary, hidden):
        bench.row(f"logits {count}", lambda: backend.logits(x, table, logits), flops, name)
    for name in plans(bench, False, count, hidden, vocabulary):
        bench.row(f"logits_backward {count}", lambda: backend.logits_backward(logits, table, x), flops, name)
    bench.row(f"cross_entropy {count}", lambda: backend.cross_entropy(logits, targets, ones, nll, True))


def attention(bench: Bench, rows: Rows, count: int, length: int, explore: bool) -> None:
    """Attention of prefill and of training. Operations are those below the diagonal."""
    backend, config = bench.backend, bench.config
    shape = (config.num_heads, config.num_kv_heads, config.head_dim)
    heads, kv_heads, dim = shape
    qkv, o = bench.floats(count, (heads + 2 * kv_heads) * dim), bench.floats(count, heads * dim)
    do = bench.floats(*o.shape)
    lse, delta, dqkv = bench.floats(count, heads), bench.floats(count, heads), bench.floats(*qkv.shape)
    flops = 2.0 * count * length * heads * dim
    name = f"{count // length}x{length}"
    blocks = -(-count // 16)
    k, v = (backend.empty((blocks, kv_heads, 16, dim), "f16") for _ in range(2))
    q = bench.floats(count, heads * dim)
    ops: dict[str, tuple[float, Callable[[], None]]] = {
        "causal_attention": (1, lambda: backend.causal_attention(qkv, rows, o, lse, *shape)),
        "paged_attention": (1, lambda: backend.paged_attention(q, k, v, rows, o, *shape)),
        "causal_attention_backward": (
            2.5,
            lambda: backend.causal_attention_backward(qkv, o, lse, do, rows, dqkv, *shape, delta),
        ),
    }
    own, storage = backend.plan_attention, backend.device.info.limits["max-compute-workgroup-storage-size"]

    def plan(size: int, *, operands: int = 1, sums: int = 1) -> AttentionTile:
        if tile is not None and tile.workgroup_bytes(size, operands) <= storage:
            return tile
        return own(size, operands=operands, sums=sums)

    backend.plan_attention = plan
    for tile in ATTENTION_TILES if explore else (None,):
        for op, (factor, call) in ops.items():
            bench.row(f"{op} {name}", call, factor * flops, str(tuple(tile or ())))
    del backend.plan_attention


def row_ops(bench: Bench, rows: Rows, count: int) -> None:
    """Norms, GLU, rope."""
    backend, config = bench.backend, bench.config
    hidden, ffn = config.hidden_size, config.intermediate_size
    x, gain, normed, dx = (bench.floats(n, hidden) for n in (count, 1, count, count))
    z, ffn_gain, gate_up, codes = bench.floats(count, ffn), bench.floats(ffn), bench.floats(count, 2 * ffn), None
    codes, scales = backend.empty((count, ffn), "i8"), backend.empty((count,))
    part = codes.view(0, (count, hidden))
    bench.row(f"rms_norm_quant {count}", lambda: backend.rms_norm_quant(x, gain, 1e-5, normed, part, scales))
    bench.row(f"rms_norm_backward {count}", lambda: backend.rms_norm_backward(x, gain, 1e-5, normed, dx, True))
    act = config.activation
    bench.row(f"glu_norm_quant {count}", lambda: backend.glu_norm_quant(gate_up, act, ffn_gain, 1e-5, z, codes, scales))
    bench.row(f"glu_backward {count}", lambda: backend.glu_backward(gate_up, act, ffn_gain, 1e-5, z, gate_up))
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    qkv, table = bench.floats(count, (heads + 2 * kv_heads) * dim), bench.floats(config.max_positions, dim)
    bench.row(f"rope {count}", lambda: backend.rope(qkv, table, rows, heads, kv_heads, dim))
    bench.row(f"copy {count}", lambda: backend.copy(x, dx))
    flat = [bench.floats(22_000_000 // 1000, 1000) for _ in range(4)]
    settings, state = backend.upload(np.full(8, 0.5)), backend.upload(np.ones(8))
    totals = backend.upload(np.ones(4))
    bench.row("global_norm 22M", lambda: backend.global_norm(flat[1], totals, settings, state))
    bench.row("adamw 22M", lambda: backend.adamw(*flat, settings, state))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--rows", default="512")
    parser.add_argument("--length", type=int, default=512, help="of a sequence")
    parser.add_argument("--ops", default="linear,lora,head,attention,rows")
    parser.add_argument("--groups", default="", help="qkv, o, gate_up, down; all by default")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.02, help="least time of a measurement")
    parser.add_argument("--shrink", type=int, default=1, help="divide the model's sizes by this, for slow devices")
    arguments = parser.parse_args()
    by = arguments.shrink
    config = replace(
        SHAPE_2B4T,
        vocab_size=SHAPE_2B4T.vocab_size // by**2 // 4 * 4,
        hidden_size=SHAPE_2B4T.hidden_size // by,
        intermediate_size=SHAPE_2B4T.intermediate_size // by // 4 * 4,
        num_heads=max(SHAPE_2B4T.num_heads // by, 4) // 4 * 4,
        num_kv_heads=max(SHAPE_2B4T.num_heads // by, 4) // 4,
    )
    backend = open_webgpu(arguments.device)
    print(backend.description)
    bench = Bench(backend, config, arguments.seconds)
    names = tuple(name for name in arguments.groups.split(",") if name)
    for count in (int(part) for part in arguments.rows.split(",")):
        length = min(arguments.length, count)
        rows = bench.rows_of(count, length)
        for group in linear_groups(config):
            if "linear" in arguments.ops and group.name in (names or group.name):
                linear(bench, rows, count, arguments.tiles, group)
            if "lora" in arguments.ops:
                lora(bench, rows, count, group)
        if "attention" in arguments.ops:
            attention(bench, rows, count, length, arguments.tiles)
        if "rows" in arguments.ops:
            row_ops(bench, rows, count)
    if "head" in arguments.ops:
        head(bench, 128, arguments.tiles)
    backend.close()


if __name__ == "__main__":
    main()
