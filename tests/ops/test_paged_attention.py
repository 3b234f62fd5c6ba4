"""paged_attention against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.base import Rows

SHAPES = [(1, 1, 4), (6, 2, 20), (2, 2, 64), (4, 1, 256)]


def make_rows(backend, positions, sequence, block_tables):
    count = len(positions)
    return Rows(
        tokens=backend.upload(np.zeros(count), "i32"),
        positions=backend.upload(positions, "i32"),
        sequence=backend.upload(sequence, "i32"),
        q_start=backend.upload(np.zeros(len(block_tables) + 1), "i32"),
        slot=backend.upload(np.zeros(count), "i32"),
        multiplier=backend.upload(np.ones(count)),
        block_tables=backend.upload(block_tables, "i32"),
    )


def attend(q, caches, positions, sequence, block_tables, shape, cache_dtype):
    def op(backend):
        o = backend.upload(np.full(q.shape, 7.0))
        k_cache, v_cache = (backend.upload(cache, cache_dtype) for cache in caches)
        rows = make_rows(backend, positions, sequence, block_tables)
        backend.paged_attention(backend.upload(q), k_cache, v_cache, rows, o, *shape)
        return {"o": o}

    return op


def block_tables_of(rng, contexts, block_size):
    """Tables that hand out shuffled blocks, as many as each context needs, and the number of blocks."""
    needed = [-(-context // block_size) for context in contexts]
    blocks = rng.permutation(sum(needed))
    tables = np.full((len(contexts), max(needed)), -1)
    for table, start, count in zip(tables, np.cumsum([0, *needed]), needed, strict=False):
        table[:count] = blocks[start : start + count]
    return tables, sum(needed)


@pytest.mark.parametrize("cache_dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_definition(both, rng, cache_dtype, shape):
    heads, kv_heads, head_dim = shape
    positions = np.array([0, 126, 127, 128, 129, -1, 2, 263])
    sequence = np.array([0, 1, 1, 1, 1, 0, 2, 3])
    tables, blocks = block_tables_of(rng, [1, 130, 3, 264], 16)
    q = rng.normal(size=(len(positions), heads * head_dim)) * 2
    caches = rng.normal(size=(2, blocks, kv_heads, 16, head_dim)).astype(np.float16)
    both.compare(attend(q, caches, positions, sequence, tables, shape, cache_dtype))


def test_what_lies_behind_the_context_is_not_read(both, rng):
    shape, positions, sequence = (2, 1, 8), np.array([4, 6]), np.array([0, 1])
    tables, blocks = block_tables_of(rng, [5, 7], 4)
    q, caches = rng.normal(size=(2, 16)), rng.normal(size=(2, blocks, 1, 4, 8)).astype(np.float32)
    clean, _ = both.run(attend(q, caches, positions, sequence, tables, shape, "f32"))
    for table, position in zip(tables, positions, strict=True):
        last = table[position // 4]
        caches[:, last, :, position % 4 + 1 :] = 1e4
    dirty, _ = both.run(attend(q, caches, positions, sequence, tables, shape, "f32"))
    np.testing.assert_array_equal(dirty["o"], clean["o"])


def test_large_scores_do_not_overflow(both, rng):
    tables, blocks = block_tables_of(rng, [140], 16)
    q, caches = np.full((1, 8), 300.0), rng.normal(size=(2, blocks, 1, 16, 8)).astype(np.float32)
    op = attend(q, caches, np.array([139]), np.array([0]), tables, (1, 1, 8), "f32")
    found, expected = both.run(op)
    np.testing.assert_allclose(found["o"], expected["o"], rtol=1e-3, atol=1e-3)
