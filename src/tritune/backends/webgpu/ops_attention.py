"""Rotary embedding and attention, over the paged cache and inside packed sequences."""

from __future__ import annotations

from collections.abc import Iterator

from tritune.backends.base import Buffer, Rows
from tritune.errors import DeviceError

from .attention_tiles import AttentionTile, plan_attention
from .few_rows_attention import FewRowsAttention, HeldRope
from .ops_gemm import GemmOps
from .tiles import PARTIAL_BYTES

MAX_HEAD_DIM = 256
FEW_ROWS = 16
"""Up to this many rows their context is split over workgroups."""
SPLIT_WORKGROUPS = 264
"""Workgroups below which the gradient of keys and values is split by query heads."""


class AttentionOps(FewRowsAttention, GemmOps):
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
            shape,
            (q.shape[0], block_tables.shape[1] * k_cache.shape[2], 2),
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
        num_rows = qkv.shape[0]
        self._queries("causal_attention", shape, (num_rows, num_rows, 2), [head_dim**-0.5], buffers, {})

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
        num_rows = qkv.shape[0]
        count = num_rows * heads
        self.dispatch(
            "causal_attention_backward_delta",
            params=[count, head_dim // 4],
            buffers=[o, do, delta],
            grid=self.grid_1d(count),
        )
        shape, scale = (heads, kv_heads, head_dim), head_dim**-0.5
        buffers = [qkv, rows.positions, do, lse, delta, dqkv]
        self._queries("causal_attention_backward_q", shape, (num_rows, num_rows, 3), [scale], buffers, {})
        self._keys_backward(shape, qkv, [qkv, rows.positions, rows.sequence, rows.q_start, do, lse, delta], dqkv)

    def _keys_backward(self, shape: tuple[int, int, int], qkv: Buffer, buffers: list[Buffer], dqkv: Buffer) -> None:
        """dk and dv; with few workgroups split by query heads, and then added up."""
        (heads, kv_heads, head_dim), num_rows = shape, qkv.shape[0]
        tile = self.plan_attention(head_dim, operands=2, sums=2)
        tiles, size = -(-num_rows // tile.size), 2 * num_rows * kv_heads * head_dim
        splits = self.plan_key_splits(tiles * kv_heads, heads // kv_heads, 4 * size)
        target = dqkv if splits == 1 else self._partial_sums(splits * size)
        for first, count in self._pieces(tiles, shape, (num_rows, num_rows, 4)):
            self.dispatch(
                "causal_attention_backward_kv",
                params=[num_rows, heads, kv_heads, first, head_dim**-0.5, splits],
                buffers=[*buffers, target],
                grid=(count, kv_heads * splits, 1),
                variant={"head_dim": head_dim, "shape": tuple(tile), "pack": 1, "partial": splits > 1},
            )
        if splits > 1:
            self.dispatch(
                "causal_attention_backward_sum",
                params=[size // 4, 2 * kv_heads * head_dim // 4, heads * head_dim // 4],
                buffers=[target, dqkv],
                grid=self.grid_1d(size // 4),
            )

    def _queries(
        self,
        kernel: str,
        shape: tuple[int, int, int],
        size: tuple[int, int, int],
        params: list[int | float],
        buffers: list[Buffer],
        variant: dict[str, object],
    ) -> None:
        """A kernel made of attention_tile.wgsl, a workgroup for each tile of rows and packed query heads; size: rows,
        keys and products, as for _pieces."""
        heads, kv_heads, head_dim = shape
        tile = self.plan_attention(head_dim)
        group = heads // kv_heads
        pack = group if tile.size % group == 0 else 1
        for first, count in self._pieces(-(-size[0] * pack // tile.size), shape, size):
            self.dispatch(
                kernel,
                params=[size[0], heads, kv_heads, first + count - 1, *params],
                buffers=buffers,
                grid=(count, heads // pack, 1),
                variant={**variant, "head_dim": head_dim, "shape": tuple(tile), "pack": pack},
            )

    def _pieces(self, tiles: int, shape: tuple[int, int, int], size: tuple[int, int, int]) -> Iterator[tuple[int, int]]:
        """First tile and number of tiles of each dispatch, so that none takes longer than a submit may, by estimate.

        size: rows, keys, and how often each row and key are multiplied. As if each row saw all keys: of causal
        attention's equal pieces the last, which sees most, does at most that much.
        """
        (heads, _, head_dim), (num_rows, keys, products) = shape, size
        seconds = 2.0 * products * num_rows * keys * heads * head_dim / self.device.rates.flops
        step = max(1, int(tiles // max(seconds / self.device.submit_seconds, 1)))
        for first in range(0, tiles, step):
            yield first, min(step, tiles - first)

    def plan_attention(self, head_dim: int, *, operands: int = 1, sums: int = 1) -> AttentionTile:
        """How attention is cut on this device; benchmarks and tests replace it."""
        info = self.device.info
        storage = info.limits["max-compute-workgroup-storage-size"]
        return plan_attention(info.software, storage, head_dim, operands=operands, sums=sums)

    def plan_key_splits(self, workgroups: int, group: int, nbytes: int) -> int:
        """Among how many workgroups a key/value head's query heads (``group``) are split; ``nbytes``: sums of one."""
        if self.device.info.software:
            return 1
        fitting = [n for n in range(1, group + 1) if group % n == 0 and n * nbytes <= PARTIAL_BYTES] or [1]
        return next((n for n in fitting if workgroups * n >= SPLIT_WORKGROUPS), fitting[-1])

    def grid_1d(self, threads: int) -> tuple[int, int, int]:
        """The grid of a kernel that has a thread for each element."""
        return -(-threads // self.device.workgroup_size), 1, 1


def check_head_dim(op: str, head_dim: int) -> None:
    """Raises DeviceError for a head size that the kernels do not know."""
    if head_dim % 4 or not 0 < head_dim <= MAX_HEAD_DIM:
        raise DeviceError(f"{op}: head size {head_dim}, expected a multiple of 4 up to {MAX_HEAD_DIM}")


def tables_of(op: str, rows: Rows) -> Buffer:
    """The block tables of a batch. Raises DeviceError when it has none."""
    if rows.block_tables is None:
        raise DeviceError(f"{op}: the batch has no block tables")
    return rows.block_tables
