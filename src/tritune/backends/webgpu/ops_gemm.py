"""Tiled matrix products: which tile, how many splits, and the dispatches that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tritune.backends.base import Buffer

from .core import WebGPUCore
from .tiles import Plan, Tile, plan_product

_SUM_THREADS = 64


class GemmOps(WebGPUCore):
    """What the ops that multiply matrices share: see kernels/gemm.wgsl."""

    _partials: Buffer | None = None  # f32 [n], made and enlarged when a product is split

    def plan_gemm(self, m: int, n: int, k: int) -> Plan:
        """How a product is cut on this device; benchmarks and tests replace it."""
        info = self.device.info
        storage = info.limits["max-compute-workgroup-storage-size"]
        return plan_product(info.software, storage, m, n, k, self.device.choices)

    def gemm(
        self,
        kernel: str,
        size: tuple[int, int, int],
        buffers: Sequence[Buffer],
        *,
        params: Sequence[int | float] = (),
        variant: Mapping[str, object] | None = None,
        part: tuple[int, int] | None = None,
    ) -> None:
        """Run a kernel made of gemm.wgsl for a product of size (M, N, K), which are its first parameters.

        part: rows and columns that belong together; a tile should not be wider (its kernel does nothing elsewhere).
        """
        m, n, k = size
        limits = size if part is None else (min(m, part[0]), min(n, part[1]), k)
        tile, splits = self.plan_gemm(*limits)
        every = {**(variant or {}), "tile": tuple(tile)}
        seconds = 2.0 * m * n * k / self.device.rates.flops
        if splits == 1:
            for first_m, first_n, rows, columns in _pieces(m, n, tile, seconds / self.device.submit_seconds):
                self.dispatch(
                    kernel,
                    params=[*size, first_m, first_n, *params],
                    buffers=buffers,
                    grid=(ceil_div(columns, tile.columns), ceil_div(rows, tile.rows), 1),
                    variant={**every, "stage": "whole"},
                )
            return
        vectors, numbers = m * ceil_div(n, 4), [*size, 0, 0, *params]
        bound = [*buffers, self._partial_sums(4 * vectors * splits)]
        grid = (ceil_div(n, tile.columns) * splits, ceil_div(m, tile.rows), 1)
        self.dispatch(kernel, params=numbers, buffers=bound, grid=grid, variant={**every, "stage": "partial"})
        grid = (ceil_div(vectors, _SUM_THREADS), 1, 1)
        self.dispatch(kernel, params=numbers, buffers=bound, grid=grid, variant={**every, "stage": "sum"})

    def _partial_sums(self, count: int) -> Buffer:
        """Room for ``count`` numbers; dispatches run one after the other, so that one buffer serves all."""
        if self._partials is None or self._partials.size < count:
            self._partials = self.empty((count,))
        return self._partials.view(0, (count,))


def _pieces(m: int, n: int, tile: Tile, count: float) -> Iterator[tuple[int, int, int, int]]:
    """At least ``count`` pieces of M rows and N columns, if there are so many tiles, along the side that has more:
    first row, first column, rows and columns of each."""
    by_rows = ceil_div(m, tile.rows) >= ceil_div(n, tile.columns)
    whole, side = (m, tile.rows) if by_rows else (n, tile.columns)
    tiles = ceil_div(whole, side)
    step = max(1, int(tiles // max(count, 1))) * side
    for first in range(0, whole, step):
        size = min(step, whole - first)
        yield (first, 0, size, n) if by_rows else (0, first, m, size)


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
