"""causal_attention: grouped-query attention inside packed sequences, without a cache.

Rows q_start[s] … q_start[s + 1] - 1 are sequence s. Only the output and the log-sum-exp of each row's scores are kept;
backward recomputes the probabilities from it (Dao et al., 2022).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tritune.ops.arrays import FloatArray, IntArray


def split_heads(qkv: FloatArray, heads: int, kv_heads: int, head_dim: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Views q [T, H, d], k and v [T, G, d] of qkv [T, (H + 2G) * d]."""
    x = qkv.reshape(qkv.shape[0], heads + 2 * kv_heads, head_dim)
    return x[:, :heads], x[:, heads : heads + kv_heads], x[:, heads + kv_heads :]


def sequences(q_start: IntArray) -> Iterator[slice]:
    """The rows of each sequence that has any."""
    for start, end in zip(q_start[:-1].tolist(), q_start[1:].tolist(), strict=True):
        if end > start:
            yield slice(start, end)


def scores_of(q: FloatArray, k: FloatArray) -> FloatArray:
    """Masked scores [G, H / G, n, n] of one sequence's q [n, H, d] and k [n, G, d]."""
    n, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(n, kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3)
    scores = grouped @ k.transpose(1, 2, 0)[:, None] * q.dtype.type(head_dim**-0.5)
    return np.where(np.tri(n, dtype=np.bool_), scores, -np.inf)


def causal_attention(
    qkv: FloatArray, q_start: IntArray, heads: int, kv_heads: int, head_dim: int
) -> tuple[FloatArray, FloatArray]:
    """o [T, H * d] and lse [T, H] of rotated qkv [T, (H + 2G) * d]; zero in rows of no sequence."""
    q, k, v = split_heads(qkv, heads, kv_heads, head_dim)
    o = np.zeros_like(q)
    lse = np.zeros((qkv.shape[0], heads), qkv.dtype)
    for rows in sequences(q_start):
        n = rows.stop - rows.start
        scores = scores_of(q[rows], k[rows])
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        out = (weights / total) @ v[rows].transpose(1, 0, 2)[:, None]
        o[rows] = out.transpose(2, 0, 1, 3).reshape(n, heads, head_dim)
        lse[rows] = (top + np.log(total))[..., 0].transpose(2, 0, 1).reshape(n, heads)
    return o.reshape(qkv.shape[0], -1), lse
