"""What a WebGPU device can do at most, measured with kernels that do nothing else: copy memory, multiply f32 matrices.

The product is tiled as what was fastest on an H200: 128 x 128 x 16, 8 x 8 outputs a thread in variables of their own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritune.backends.webgpu.device import Device

COPY_UNROLL = 4
TILE, DEPTH = 128, 16
WARM_UP = 0.4
"""Seconds: a GPU that was idle begins with low clocks."""


@dataclass(frozen=True)
class Ceilings:
    """A second."""

    copy: float  # bytes, read and written together
    flops: float  # f32 operations, two a multiply-add


def copy_kernel() -> str:
    """target = source, vec4 at a time; a workgroup moves 256 * COPY_UNROLL of them."""
    moves = "\n".join(f"    y[start + {256 * i}u] = x[start + {256 * i}u];" for i in range(COPY_UNROLL))
    return f"""
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>,
        @builtin(local_invocation_index) li: u32) {{
    let start = (wg.x + wg.y * grid.x) * {256 * COPY_UNROLL}u + li;
{moves}
}}"""


def product_kernel(size: int) -> str:
    """c = a · b of square f32 matrices whose side is a multiple of TILE."""
    words, rows, halves = size // 4, range(8), range(2)
    sums = "\n".join(f"    var c{i}_{h} = vec4<f32>();" for i in rows for h in halves)
    places = {0: "li", 1: "li + 256u"}
    fetches = "\n".join(
        f"        na{n} = a[(row + ({at}) / 4u) * {words}u + min(k, {size // DEPTH - 1}u) * 4u + ({at}) % 4u];\n"
        f"        nb{n} = b[(min(k, {size // DEPTH - 1}u) * 16u + ({at}) / 32u) * {words}u + column + ({at}) % 32u];"
        for n, at in places.items()
    )
    puts = "\n".join(f"        ta[{at}] = na{n};\n        tb[{at}] = nb{n};" for n, at in places.items())
    steps: list[str] = []
    for k in range(DEPTH // 4):
        steps += [f"        let a{k}_{i} = ta[(ty * 8u + {i}u) * 4u + {k}u];" for i in rows]
        for j in range(4):
            steps += [f"        let b{k}_{j}_{h} = tb[{(k * 4 + j) * 32 + 16 * h}u + tx];" for h in halves]
            steps += [f"        c{i}_{h} += a{k}_{i}[{j}] * b{k}_{j}_{h};" for i in rows for h in halves]
    stores = "\n".join(
        f"    c[(row + ty * 8u + {i}u) * {words}u + column + {16 * h}u + tx] = c{i}_{h};" for i in rows for h in halves
    )
    return f"""
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> c: array<vec4<f32>>;
var<workgroup> ta: array<vec4<f32>, {TILE * DEPTH // 4}>;
var<workgroup> tb: array<vec4<f32>, {TILE * DEPTH // 4}>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {{
    let row = wg.y * {TILE}u;
    let column = wg.x * {TILE // 4}u;
    let tx = li % 16u;
    let ty = li / 16u;
{sums}
    var na0: vec4<f32>; var na1: vec4<f32>; var nb0: vec4<f32>; var nb1: vec4<f32>;
    var k = 0u;
{fetches}
    loop {{
        workgroupBarrier();
{puts}
        workgroupBarrier();
        k++;
{fetches}
{chr(10).join(steps)}
        if k == {size // DEPTH}u {{ break; }}
    }}
{stores}
}}"""


class Kernel:
    """A kernel of its own, with its buffers, outside of any backend."""

    def __init__(self, device: Device, source: str, sizes: list[int]) -> None:
        """sizes: bytes of each buffer, powers of two, in the order of the bindings."""
        self._device = device
        module = device.handle.create_shader_module(code=source)
        self._pipeline: Any = device.handle.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        self.buffers = [device.handle.create_buffer(size=size, usage="STORAGE|COPY_DST|COPY_SRC") for size in sizes]
        entries = [
            {"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for i, buffer in enumerate(self.buffers)
        ]
        self._group: Any = device.handle.create_bind_group(
            layout=self._pipeline.get_bind_group_layout(0), entries=entries
        )

    def seconds(self, grid: tuple[int, int], times: int, repeats: int = 5) -> float:
        """Of one dispatch, in a submit of ``times`` of them; the median."""

        def run() -> None:
            encoder = self._device.handle.create_command_encoder()
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(self._pipeline)
            compute.set_bind_group(0, self._group)
            for _ in range(times):
                compute.dispatch_workgroups(*grid, 1)
            compute.end()
            self._device.queue.submit([encoder.finish()])
            self._device.wait()

        start = time.perf_counter()
        while time.perf_counter() - start < WARM_UP:
            run()
        return statistics.median(timed(run) for _ in range(repeats)) / times

    def fill(self) -> None:
        """Random numbers in each buffer: zeros can be faster than what is real."""
        for buffer in self.buffers:
            numbers = np.random.default_rng(0).standard_normal(min(buffer.size // 4, 1 << 24), np.float32)
            for start in range(0, buffer.size, numbers.nbytes):
                self._device.queue.write_buffer(buffer, start, numbers)

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.destroy()


def timed(run: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure_ceilings(device: Device) -> Ceilings:
    """Takes a fraction of a second, and less than 2 GiB (64 MiB of a software driver)."""
    software = device.info.software
    size = min(32 << 20 if software else 1 << 30, device.max_binding, device.max_buffer)
    workgroups = size // (16 * 256 * COPY_UNROLL)
    across = min(workgroups, 1 << 15)
    kernel = Kernel(device, copy_kernel(), [size, size])
    kernel.fill()
    down = workgroups // across
    copy = 2 * across * down * 16 * 256 * COPY_UNROLL / kernel.seconds((across, down), 1 if software else 10)
    kernel.close()
    side = 512 if software else 4096
    kernel = Kernel(device, product_kernel(side), [4 * side * side] * 3)
    kernel.fill()
    flops = 2 * side**3 / kernel.seconds((side // TILE, side // TILE), 1 if software else 4)
    kernel.close()
    return Ceilings(copy, flops)
