"""Tiled matrix products: which tile, how many splits, and the dispatches that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritune.backends.base import Buffer

from .core import WebGPUCore
from .tiles import Plan, plan_product

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
        numbers = [*size, *params]
        grid = (ceil_div(n, tile.columns) * splits, ceil_div(m, tile.rows), 1)
        if splits == 1:
            self.dispatch(kernel, params=numbers, buffers=buffers, grid=grid, variant={**every, "stage": "whole"})
            return
        vectors = m * ceil_div(n, 4)
        bound = [*buffers, self._partial_sums(4 * vectors * splits)]
        self.dispatch(kernel, params=numbers, buffers=bound, grid=grid, variant={**every, "stage": "partial"})
        grid = (ceil_div(vectors, _SUM_THREADS), 1, 1)
        self.dispatch(kernel, params=numbers, buffers=bound, grid=grid, variant={**every, "stage": "sum"})

    def _partial_sums(self, count: int) -> Buffer:
        """Room for ``count`` numbers; dispatches run one after the other, so that one buffer serves all."""
        if self._partials is None or self._partials.size < count:
            self._partials = self.empty((count,))
        return self._partials.view(0, (count,))


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
