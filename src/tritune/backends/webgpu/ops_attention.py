"""Rotary embedding and attention, over the paged cache and inside packed sequences."""

from __future__ import annotations

from typing import NamedTuple

from tritune.backends.base import Buffer, Rows
from tritune.errors import DeviceError

from .few_rows_attention import FewRowsAttention, HeldRope

MAX_HEAD_DIM = 256
FEW_ROWS = 16
"""Up to this many rows their context is split over workgroups."""
THREAD_ROWS = 8
"""Threads over the rows (or keys, for dk and dv) of a workgroup of the causal attention kernels."""


MANY_QUERIES = 30_000
"""Rows times heads from which on a workgroup takes 64 of them and not 32."""


class QueryTile(NamedTuple):
    """How a workgroup of attention_tile.wgsl is cut: 8 groups of threads, each for some queries."""

    queries: int  # of a thread
    columns: int  # threads of a group
    keys: int  # of a thread


class AttentionOps(FewRowsAttention):
    """See Backend for each op's contract, kernels/<op>.wgsl for its layout and work split."""

    def rope(self, qkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int) -> None:
        """See Backend.rope."""
        self._rope(qkv, table, rows, heads + kv_heads, head_dim, 1.0)

    def rope_backward(self, dqkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int) -> None:
        """See Backend.rope_backward."""
        self._rope(dqkv, table, rows, heads + kv_heads, head_dim, -1.0)

    def _rope(self, qkv: Buffer, table: Buffer, rows: Rows, rotated: int, head_dim: int, sign: float) -> None:
        check_head_dim("rope", head_dim)
        num_rows, stride = qkv.shape
        self.dispatch(
            "rope",
            params=[num_rows, rotated, head_dim // 2, stride, sign],
            buffers=[qkv, table, rows.positions],
            grid=(num_rows, 1, 1),
        )

    def rope_cache(
        self,
        qkv: Buffer,
        table: Buffer,
        rows: Rows,
        q: Buffer,
        k_cache: Buffer,
        v_cache: Buffer,
        heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        """See Backend.rope_cache."""
        check_head_dim("rope_cache", head_dim)
        block_tables = tables_of("rope_cache", rows)
        blocks, _, block_size, _ = k_cache.shape
        num_rows = qkv.shape[0]

        def run() -> None:
            self.dispatch(
                "rope_cache",
                params=[num_rows, heads, kv_heads, head_dim // 2, block_size, block_tables.shape[1], blocks],
                buffers=[qkv, table, rows.positions, rows.sequence, block_tables, q, k_cache, v_cache],
                grid=(num_rows, 1, 1),
                variant={"half_cache": k_cache.dtype == "f16"},
            )

        self.hold(HeldRope(run, qkv, table, q, k_cache, v_cache, rows))

    def paged_attention(
        self,
        q: Buffer,
        k_cache: Buffer,
        v_cache: Buffer,
        rows: Rows,
        o: Buffer,
        heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        """See Backend.paged_attention."""
        check_head_dim("paged_attention", head_dim)
        block_tables = tables_of("paged_attention", rows)
        shape = (heads, kv_heads, head_dim)
        if q.shape[0] <= FEW_ROWS and self.attend_few(q, k_cache, v_cache, rows, block_tables, o, shape):
            return
        self._queries(
            "paged_attention",
            (heads, kv_heads, head_dim),
            q.shape[0],
            [k_cache.shape[2], block_tables.shape[1], head_dim**-0.5],
            [q, k_cache, v_cache, rows.positions, rows.sequence, block_tables, o],
            {"half_cache": k_cache.dtype == "f16"},
        )

    def causal_attention(
        self, qkv: Buffer, rows: Rows, o: Buffer, lse: Buffer, heads: int, kv_heads: int, head_dim: int
    ) -> None:
        """See Backend.causal_attention."""
        check_head_dim("causal_attention", head_dim)
        shape = (heads, kv_heads, head_dim)
        buffers = [qkv, rows.positions, o, lse]
        self._queries("causal_attention", shape, qkv.shape[0], [head_dim**-0.5], buffers, {})

    def causal_attention_backward(
        self,
        qkv: Buffer,
        o: Buffer,
        lse: Buffer,
        do: Buffer,
        rows: Rows,
        dqkv: Buffer,
        heads: int,
        kv_heads: int,
        head_dim: int,
        delta: Buffer,
    ) -> None:
        """See Backend.causal_attention_backward."""
        check_head_dim("causal_attention_backward", head_dim)
        count = qkv.shape[0] * heads
        self.dispatch(
            "causal_attention_backward_delta",
            params=[count, head_dim // 4],
            buffers=[o, do, delta],
            grid=(-(-count // self.device.workgroup_size), 1, 1),
        )
        shape = (heads, kv_heads, head_dim)
        buffers = [qkv, rows.positions, do, lse, delta, dqkv]
        self._tiled("causal_attention_backward_q", buffers, shape, heads, sums=1)
        buffers = [qkv, rows.positions, rows.sequence, rows.q_start, do, lse, delta, dqkv]
        self._tiled("causal_attention_backward_kv", buffers, shape, kv_heads, sums=2)

    def _queries(
        self,
        kernel: str,
        shape: tuple[int, int, int],
        num_rows: int,
        params: list[int | float],
        buffers: list[Buffer],
        variant: dict[str, object],
    ) -> None:
        """A kernel made of attention_tile.wgsl, a workgroup for each tile of rows and packed query heads."""
        heads, kv_heads, head_dim = shape
        tile = self.query_tile(num_rows, heads, head_dim)
        queries = 8 * tile.queries
        pack = heads // kv_heads if queries % (heads // kv_heads) == 0 else 1
        self.dispatch(
            kernel,
            params=[num_rows, heads, kv_heads, *params],
            buffers=buffers,
            grid=(-(-num_rows * pack // queries), heads // pack, 1),
            variant={**variant, "head_dim": head_dim, "shape": tuple(tile), "pack": pack},
        )

    def query_tile(self, num_rows: int, heads: int, head_dim: int) -> QueryTile:
        """How attention_tile.wgsl is cut; benchmarks and tests replace it."""
        if self.device.info.software:
            return QueryTile(4, 8, 4 if head_dim <= 128 else 2)
        if self.device.info.limits["max-compute-workgroup-storage-size"] < 32 << 10 or head_dim > 128:
            return QueryTile(4, 16, 1)
        return QueryTile(4 if num_rows * heads < MANY_QUERIES else 8, 16, 2)

    def _tiled(
        self, kernel: str, buffers: list[Buffer], shape: tuple[int, int, int], grid_heads: int, *, sums: int
    ) -> None:
        """One of the causal attention kernels, of which a thread holds ``sums`` outputs in registers."""
        num_rows = buffers[0].shape[0]
        heads, kv_heads, head_dim = shape
        rows = rows_of_thread(head_dim, sums)
        self.dispatch(
            kernel,
            params=[num_rows, heads, kv_heads, head_dim**-0.5],
            buffers=buffers,
            grid=(-(-num_rows // (THREAD_ROWS * rows)), grid_heads, 1),
            variant={"head_dim": head_dim, "rows": rows},
        )


def rows_of_thread(head_dim: int, sums: int) -> int:
    """Rows of a thread of the causal attention kernels: 4 reuse what is loaded twice as often as 2, if registers allow.

    A thread sums every eighth vec4 of each of its rows; beyond 16 of them compilers begin to spill.
    """
    vectors = -(-head_dim // 32)
    return 4 if 4 * sums * vectors <= 16 else 2


def check_head_dim(op: str, head_dim: int) -> None:
    """Raises DeviceError for a head size that the kernels do not know."""
    if head_dim % 4 or not 0 < head_dim <= MAX_HEAD_DIM:
        raise DeviceError(f"{op}: head size {head_dim}, expected a multiple of 4 up to {MAX_HEAD_DIM}")


def tables_of(op: str, rows: Rows) -> Buffer:
    """The block tables of a batch. Raises DeviceError when it has none."""
    if rows.block_tables is None:
        raise DeviceError(f"{op}: the batch has no block tables")
    return rows.block_tables
