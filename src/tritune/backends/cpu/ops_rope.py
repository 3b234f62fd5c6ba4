"""Rotary position embedding, and the way of keys and values into the cache."""

from __future__ import annotations

from tritune.backends.base import Buffer, Rows
from tritune.errors import DeviceError

from .buffers import own_buffer
from .core import CpuCore
from .ops_rows import FORMATS


class RopeOps(CpuCore):
    """See Backend for each op's contract, native/rope.cpp for its work split."""

    def rope(self, qkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int) -> None:
        """See Backend.rope."""
        self._rope("rope", qkv, table, rows, heads, kv_heads, head_dim, 1.0)

    def rope_backward(self, dqkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int) -> None:
        """See Backend.rope_backward."""
        self._rope("rope_backward", dqkv, table, rows, heads, kv_heads, head_dim, -1.0)

    def _rope(
        self, op: str, qkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int, sign: float
    ) -> None:
        count = qkv.shape[0]
        self._check(op, qkv, table, rows, heads, kv_heads, head_dim)
        self.call(
            "rope", qkv, table, rows.positions, sign, count, table.size // head_dim, heads, kv_heads, head_dim
        )  # fmt: skip

    def _check(self, op: str, qkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int) -> None:
        count = qkv.shape[0]
        self.expect(op, "qkv", qkv, "f32", count, (heads + 2 * kv_heads) * head_dim)
        self.expect(op, "table", table, "f32", table.size // head_dim, head_dim)
        self.expect(op, "positions", rows.positions, "i32", count)

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
        op = "rope_cache"
        self._check(op, qkv, table, rows, heads, kv_heads, head_dim)
        if rows.block_tables is None:
            raise DeviceError(f"{op}: the rows have no block tables")
        count, cache = qkv.shape[0], own_buffer(k_cache)
        if cache.dtype not in ("f16", "f32") or len(cache.shape) != 4:
            raise DeviceError(
                f"{op}: k_cache is {cache.dtype} {list(cache.shape)}, expected f16 or f32 [blocks, G, b, d]"
            )
        blocks, _, block_size, _ = cache.shape
        for name, buffer in (("k_cache", k_cache), ("v_cache", v_cache)):
            self.expect(op, name, buffer, cache.dtype, blocks, kv_heads, block_size, head_dim)
        self.expect(op, "q", q, "f32", count, heads * head_dim)
        self.expect(op, "sequence", rows.sequence, "i32", count)
        sequences, max_blocks = rows.block_tables.shape
        self.expect(op, "block_tables", rows.block_tables, "i32", sequences, max_blocks)
        self.call(
            op, qkv, table, rows.positions, rows.sequence, rows.block_tables, q, k_cache, v_cache,
            FORMATS[cache.dtype], self.scratch("row", self.threads * head_dim), count, table.size // head_dim,
            heads, kv_heads, head_dim, sequences, max_blocks, blocks, block_size,
        )  # fmt: skip
