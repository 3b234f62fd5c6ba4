"""rope_cache against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.base import Rows
from tritune.ops.rope import rope_table

BLOCKS, BLOCK_SIZE = 7, 5


def make_rows(backend):
    # Sequence 0 is decoded at position 12, sequence 1 is filled from 3 on over a block's end, then two rows are spare.
    positions, sequence = np.array([12, 3, 4, 5, 6, -1, -1]), np.array([0, 1, 1, 1, 1, 0, 0])
    return Rows(
        tokens=backend.upload(np.zeros(7), "i32"),
        positions=backend.upload(positions, "i32"),
        sequence=backend.upload(sequence, "i32"),
        q_start=backend.upload(np.array([0, 1, 5]), "i32"),
        slot=backend.upload(np.zeros(7), "i32"),
        multiplier=backend.upload(np.ones(7)),
        block_tables=backend.upload(np.array([[6, 1, 3], [2, 5, -1]]), "i32"),
    )


@pytest.mark.parametrize("cache_dtype", ["f32", "f16"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 4), (6, 3, 20), (2, 1, 128)])
def test_equals_the_definition(both, rng, cache_dtype, heads, kv_heads, head_dim):
    qkv = rng.normal(size=(7, (heads + 2 * kv_heads) * head_dim))
    before = rng.normal(size=(2, BLOCKS, kv_heads, BLOCK_SIZE, head_dim)).astype(np.float16)

    def op(backend):
        q = backend.empty((7, heads * head_dim))
        k_cache, v_cache = (backend.upload(cache, cache_dtype) for cache in before)
        table = backend.upload(rope_table(16, head_dim, 10000.0))
        backend.rope_cache(
            backend.upload(qkv), table, make_rows(backend), q, k_cache, v_cache, heads, kv_heads, head_dim
        )
        return {"q": q, "k_cache": k_cache, "v_cache": v_cache}

    found, expected = both.run(op)
    both.close(found["q"][:5], expected["q"][:5])
    for name, was in zip(("k_cache", "v_cache"), before, strict=True):
        both.close(found[name], expected[name], cache_dtype, name)
        # Only the five rows' places have changed.
        changed = np.argwhere((found[name] != was).any(axis=(1, 3)))
        assert changed.tolist() == [[2, 3], [2, 4], [3, 2], [5, 0], [5, 1]]
