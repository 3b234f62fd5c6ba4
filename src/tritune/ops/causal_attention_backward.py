"""causal_attention_backward: dq, dk and dv of attention inside packed sequences.

With P = exp(scores - lse):  dv = Pᵀ do;  dP = do vᵀ;  dS = P * (dP - rowsum(do * o)) / sqrt(d);  dq = dS k;  dk = dSᵀ
q. A key or value head sums over the query heads of its group, and every row's k and v gather from all later rows.
"""

from __future__ import annotations

import numpy as np

from tritune.ops.arrays import FloatArray, IntArray
from tritune.ops.causal_attention import scores_of, sequences, split_heads


def causal_attention_backward(
    qkv: FloatArray,
    o: FloatArray,
    lse: FloatArray,
    do: FloatArray,
    q_start: IntArray,
    heads: int,
    kv_heads: int,
    head_dim: int,
) -> FloatArray:
    """dqkv [T, (H + 2G) * d] with respect to rotated qkv; o, do [T, H * d], lse [T, H]. Zero in rows of no sequence."""
    q, k, v = split_heads(qkv, heads, kv_heads, head_dim)
    dqkv = np.zeros_like(qkv)
    dq, dk, dv = split_heads(dqkv, heads, kv_heads, head_dim)
    group = heads // kv_heads
    scale = qkv.dtype.type(head_dim**-0.5)
    for rows in sequences(q_start):
        n = rows.stop - rows.start

        def grouped(x: FloatArray, n: int = n) -> FloatArray:
            return x.reshape(n, kv_heads, group, -1).transpose(1, 2, 0, 3)

        q_s, do_s, o_s = grouped(q[rows]), grouped(do[rows]), grouped(o[rows])
        p = np.exp(scores_of(q[rows], k[rows]) - grouped(lse[rows]))
        dp = do_s @ v[rows].transpose(1, 2, 0)[:, None]
        ds = p * (dp - np.sum(do_s * o_s, axis=-1, keepdims=True)) * scale
        dq[rows] = (ds @ k[rows].transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3).reshape(n, heads, head_dim)
        dk[rows] = np.sum(ds.swapaxes(-1, -2) @ q_s, axis=1).transpose(1, 0, 2)
        dv[rows] = np.sum(p.swapaxes(-1, -2) @ do_s, axis=1).transpose(1, 0, 2)
    return dqkv
