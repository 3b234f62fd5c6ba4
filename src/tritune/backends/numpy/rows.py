"""Norms, GLU, RoPE, attention and embedding on the NumPy backend."""

from __future__ import annotations

from tritune.backends.base import Buffer, Rows, Table
from tritune.backends.numpy.buffers import NumpyTable
from tritune.backends.numpy.calls import Calls, array, heads_of, optional
from tritune.ops.arrays import FloatArray
from tritune.ops.causal_attention import causal_attention
from tritune.ops.causal_attention_backward import causal_attention_backward
from tritune.ops.embed import embed
from tritune.ops.gather_rows import gather_rows, scatter_rows
from tritune.ops.glu_backward import glu_backward
from tritune.ops.glu_norm_quant import glu_norm
from tritune.ops.next_rows import next_rows
from tritune.ops.paged_attention import paged_attention
from tritune.ops.rms_norm_backward import rms_norm_backward
from tritune.ops.rms_norm_quant import quantise, rms_norm
from tritune.ops.rope import rotate
from tritune.ops.rope_cache import write_cache


def _store(value: FloatArray, normed: Buffer | None, codes: Buffer | None, scales: Buffer | None) -> None:
    if normed is not None:
        array(normed)[...] = value
    if codes is not None and scales is not None:
        array(codes)[...], array(scales)[...] = quantise(value)


class RowOps(Calls):
    """Ops whose rows depend on nothing but themselves and their sequence."""

    def embed(self, tokens: Buffer, table: Table, x: Buffer) -> None:
        assert isinstance(table, NumpyTable)
        ids, rows, out = array(tokens), table.array, array(x)

        def call() -> None:
            out[...] = embed(ids, rows, self.dtype)

        self._do(call)

    def rms_norm_quant(
        self,
        x: Buffer,
        gain: Buffer | None,
        eps: float,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> None:
        def call() -> None:
            value = array(x) if gain is None else rms_norm(array(x), array(gain), eps)
            _store(value, normed, codes, scales)

        self._do(call)

    def rms_norm_backward(
        self, x: Buffer, gain: Buffer, eps: float, dy: Buffer, dx: Buffer, accumulate: bool = False
    ) -> None:
        def call() -> None:
            grad = rms_norm_backward(array(x), array(gain), eps, array(dy))
            array(dx)[...] = array(dx) + grad if accumulate else grad

        self._do(call)

    def glu_norm_quant(
        self,
        gate_up: Buffer,
        activation: str,
        gain: Buffer | None,
        eps: float,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> None:
        def call() -> None:
            _store(glu_norm(array(gate_up), activation, optional(gain), eps), normed, codes, scales)

        self._do(call)

    def glu_backward(
        self, gate_up: Buffer, activation: str, gain: Buffer | None, eps: float, dy: Buffer, dgate_up: Buffer
    ) -> None:
        def call() -> None:
            array(dgate_up)[...] = glu_backward(array(gate_up), activation, optional(gain), eps, array(dy))

        self._do(call)

    def gather_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        def call() -> None:
            array(out)[...] = gather_rows(array(x), array(index))

        self._do(call)

    def next_rows(self, drawn: Buffer, rows: Rows) -> None:
        def call() -> None:
            follow = next_rows(array(drawn), array(rows.tokens), array(rows.positions))
            array(rows.tokens)[...], array(rows.positions)[...] = follow

        self._do(call)

    def scatter_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        def call() -> None:
            array(out)[...] = scatter_rows(array(x), array(index), out.shape[0])

        self._do(call)

    def rope(self, qkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int) -> None:
        self._rotate(qkv, table, rows, heads, kv_heads, head_dim, inverse=False)

    def rope_backward(self, dqkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int) -> None:
        self._rotate(dqkv, table, rows, heads, kv_heads, head_dim, inverse=True)

    def _rotate(
        self, qkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int, inverse: bool
    ) -> None:
        qk = heads_of(qkv, heads + 2 * kv_heads, head_dim)[:, : heads + kv_heads]

        def call() -> None:
            qk[...] = rotate(qk, array(table), array(rows.positions), inverse)

        self._do(call)

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
        assert rows.block_tables is not None
        x = heads_of(qkv, heads + 2 * kv_heads, head_dim)
        positions, sequence, blocks = array(rows.positions), array(rows.sequence), array(rows.block_tables)

        def call() -> None:
            rotated = rotate(x[:, : heads + kv_heads], array(table), positions)
            array(q)[...] = rotated[:, :heads].reshape(q.shape)
            write_cache(rotated[:, heads:], array(k_cache), positions, sequence, blocks)
            write_cache(x[:, heads + kv_heads :], array(v_cache), positions, sequence, blocks)

        self._do(call)

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
        assert rows.block_tables is not None
        blocks = array(rows.block_tables)

        def call() -> None:
            out = paged_attention(
                heads_of(q, heads, head_dim),
                array(k_cache),
                array(v_cache),
                array(rows.positions),
                array(rows.sequence),
                blocks,
            )
            array(o)[...] = out.reshape(o.shape)

        self._do(call)

    def causal_attention(
        self, qkv: Buffer, rows: Rows, o: Buffer, lse: Buffer, heads: int, kv_heads: int, head_dim: int
    ) -> None:
        def call() -> None:
            array(o)[...], array(lse)[...] = causal_attention(
                array(qkv), array(rows.q_start), heads, kv_heads, head_dim
            )

        self._do(call)

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
        def call() -> None:
            array(dqkv)[...] = causal_attention_backward(
                array(qkv), array(o), array(lse), array(do), array(rows.q_start), heads, kv_heads, head_dim
            )

        self._do(call)
