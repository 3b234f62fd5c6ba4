"""rope and rope_backward against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.base import Rows
from tritune.ops.rope import rope_table


def make_rows(backend, positions):
    count = len(positions)
    zeros = backend.upload(np.zeros(count), "i32")
    return Rows(
        tokens=zeros,
        positions=backend.upload(positions, "i32"),
        sequence=zeros,
        q_start=backend.upload(np.array([0, count]), "i32"),
        slot=zeros,
        multiplier=backend.upload(np.ones(count)),
    )


@pytest.mark.parametrize("name", ["rope", "rope_backward"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 4), (3, 1, 20), (6, 2, 64), (2, 2, 256)])
def test_equals_the_definition(both, rng, name, heads, kv_heads, head_dim):
    positions = np.array([0, 1, -1, 126, 7, -1, 128])
    qkv = rng.normal(size=(len(positions), (heads + 2 * kv_heads) * head_dim))
    table = rope_table(129, head_dim, 10000.0)

    def op(backend):
        buffer = backend.upload(qkv)
        rope = getattr(backend, name)
        rope(buffer, backend.upload(table), make_rows(backend, positions), heads, kv_heads, head_dim)
        return {"qkv": buffer}

    both.compare(op)
    found, _ = both.run(op)
    np.testing.assert_array_equal(found["qkv"][positions < 0], qkv[positions < 0].astype(np.float32))


def test_backward_undoes_forward(both, rng):
    qkv, positions = rng.normal(size=(3, 4 * 12)), np.array([5, 17, 101])

    def op(backend):
        buffer, table, rows = (
            backend.upload(qkv),
            backend.upload(rope_table(128, 12, 500.0)),
            make_rows(backend, positions),
        )
        backend.rope(buffer, table, rows, 2, 1, 12)
        backend.rope_backward(buffer, table, rows, 2, 1, 12)
        return {"qkv": buffer}

    found, _ = both.run(op)
    both.close(found["qkv"], qkv)
