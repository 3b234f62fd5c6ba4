"""paged_attention: causal grouped-query attention over the cache (Vaswani et al., 2017; Ainslie et al., 2023; Kwon et
al., 2023)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritune.ops.arrays import FloatArray, IntArray


def paged_attention(
    q: FloatArray,
    k_cache: NDArray[np.generic],
    v_cache: NDArray[np.generic],
    positions: IntArray,
    sequence: IntArray,
    block_tables: IntArray,
) -> FloatArray:
    """o [T, H, d] of q [T, H, d]; caches [blocks, G, block_size, d]. Row t sees positions 0 … positions[t] of its
    sequence."""
    heads, head_dim = q.shape[1:]
    kv_heads, block_size = k_cache.shape[1:3]
    o = np.zeros_like(q)
    for s in np.unique(sequence[positions >= 0]):
        rows = np.flatnonzero((sequence == s) & (positions >= 0))
        context = int(positions[rows].max()) + 1
        blocks = block_tables[s, : -(-context // block_size)]
        k, v = (
            c[blocks].astype(q.dtype).transpose(1, 0, 2, 3).reshape(kv_heads, -1, head_dim)[:, :context]
            for c in (k_cache, v_cache)
        )
        grouped = q[rows].reshape(len(rows), kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3)
        scores = grouped @ k[:, None].swapaxes(-1, -2) * q.dtype.type(head_dim**-0.5)
        scores = np.where(np.arange(context) <= positions[rows][:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        o[rows] = (weights @ v[:, None]).transpose(2, 0, 1, 3).reshape(len(rows), heads, head_dim)
    return o
