"""Attention over the paged cache and inside packed sequences."""

from __future__ import annotations

from tritune.backends.base import Buffer, Rows
from tritune.errors import DeviceError

from .core import CpuCore

MAX_HEAD_DIM = 256
MAX_GROUP = 256
"""Most query heads that may share a key/value head."""

Shape = tuple[int, int, int]  # heads, kv_heads, head_dim


class AttentionOps(CpuCore):
    """See Backend for each op's contract, native/<op>.cpp for its work split."""

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
        op, count = "paged_attention", q.shape[0]
        shape = _checked(op, heads, kv_heads, head_dim)
        tables = rows.block_tables
        if tables is None:
            raise DeviceError(f"{op}: the batch has no block tables")
        if k_cache.dtype not in ("f16", "f32") or len(k_cache.shape) != 4:
            raise DeviceError(
                f"{op}: the cache is {k_cache.dtype} {list(k_cache.shape)}, expected 4 axes of f16 or f32"
            )
        blocks, block_size, max_blocks = k_cache.shape[0], k_cache.shape[2], tables.shape[1]
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            self.expect(op, name, cache, k_cache.dtype, blocks, kv_heads, block_size, head_dim)
        self.expect(op, "q", q, "f32", count, heads * head_dim)
        self.expect(op, "o", o, "f32", count, heads * head_dim)
        self.expect(op, "positions", rows.positions, "i32", count)
        self.expect(op, "sequence", rows.sequence, "i32", count)
        needed = self.native.paged_attention_scratch_bytes(self._pool, count, *shape, max_blocks * block_size)
        self.call(
            op, q, k_cache, v_cache, k_cache.dtype == "f16", rows.positions, rows.sequence, tables, o,
            count, *shape, block_size, max_blocks, self._bytes(op, needed),
        )  # fmt: skip

    def causal_attention(
        self, qkv: Buffer, rows: Rows, o: Buffer, lse: Buffer, heads: int, kv_heads: int, head_dim: int
    ) -> None:
        """See Backend.causal_attention."""
        op, count = "causal_attention", qkv.shape[0]
        shape = _checked(op, heads, kv_heads, head_dim)
        self.expect(op, "qkv", qkv, "f32", count, (heads + 2 * kv_heads) * head_dim)
        self.expect(op, "o", o, "f32", count, heads * head_dim)
        self.expect(op, "lse", lse, "f32", count, heads)
        self.expect(op, "positions", rows.positions, "i32", count)
        needed = self.native.causal_attention_scratch_bytes(self._pool, *shape)
        self.call(op, qkv, rows.positions, o, lse, count, *shape, self._bytes(op, needed))

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
        op, count = "causal_attention_backward", qkv.shape[0]
        shape = _checked(op, heads, kv_heads, head_dim)
        width, sequences = (heads + 2 * kv_heads) * head_dim, rows.q_start.size - 1
        for name, buffer, columns in (
            ("qkv", qkv, width), ("dqkv", dqkv, width), ("o", o, heads * head_dim), ("do", do, heads * head_dim),
            ("lse", lse, heads), ("delta", delta, heads),
        ):  # fmt: skip
            self.expect(op, name, buffer, "f32", count, columns)
        self.expect(op, "q_start", rows.q_start, "i32", sequences + 1)
        needed = self.native.causal_attention_backward_scratch_bytes(self._pool, count, *shape)
        self.call(op, qkv, o, lse, do, rows.q_start, sequences, dqkv, delta, count, *shape, self._bytes(op, needed))

    def _bytes(self, op: str, count: int) -> Buffer:
        return self.scratch(op, -(-count // 4))


def _checked(op: str, heads: int, kv_heads: int, head_dim: int) -> Shape:
    """The arguments; raises DeviceError for sizes that the kernels do not know."""
    if head_dim % 4 or not 0 < head_dim <= MAX_HEAD_DIM:
        raise DeviceError(f"{op}: head size {head_dim}, expected a multiple of 4 up to {MAX_HEAD_DIM}")
    if kv_heads < 1 or heads % kv_heads or heads // kv_heads > MAX_GROUP:
        raise DeviceError(f"{op}: {heads} query heads cannot share {kv_heads} key/value heads")
    return heads, kv_heads, head_dim
