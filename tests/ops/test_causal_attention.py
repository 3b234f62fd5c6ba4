"""causal_attention and causal_attention_backward against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.base import Rows

SHAPES = [(1, 1, 4), (6, 2, 20), (2, 1, 64), (3, 3, 36), (2, 1, 256)]
BATCHES = [([1], 0), ([3, 1, 2], 5), ([17, 16, 31], 0), ([129], 3), ([5, 40, 1, 33, 50], 5)]  # lengths, spare rows

# These kernels have no reduction of the prelude, so a device without subgroups takes no other path.
pytestmark = pytest.mark.parametrize("both", ["numpy", "webgpu"], indirect=True)


def make_rows(backend, lengths, spare):
    positions = np.concatenate([*[np.arange(length) for length in lengths], np.full(spare, -1)])
    sequence = np.concatenate([np.repeat(np.arange(len(lengths)), lengths), np.zeros(spare, int)])
    zeros = backend.upload(np.zeros(len(positions)), "i32")
    return Rows(
        tokens=zeros,
        positions=backend.upload(positions, "i32"),
        sequence=backend.upload(sequence, "i32"),
        q_start=backend.upload(np.cumsum([0, *lengths]), "i32"),
        slot=zeros,
        multiplier=backend.upload(np.ones(len(positions))),
    )


def forward(backend, qkv, lengths, spare, shape):
    heads, kv_heads, head_dim = shape
    buffers = (
        backend.upload(qkv),
        backend.upload(np.full((len(qkv), heads * head_dim), 7.0)),
        backend.upload(np.full((len(qkv), heads), 7.0)),
        make_rows(backend, lengths, spare),
    )
    x, o, lse, rows = buffers
    backend.causal_attention(x, rows, o, lse, heads, kv_heads, head_dim)
    return buffers


def make_qkv(rng, count, shape):
    heads, kv_heads, head_dim = shape
    return rng.normal(size=(count, (heads + 2 * kv_heads) * head_dim))


def gradient(qkv, do, lengths, spare, shape):
    def op(backend):
        x, o, lse, rows = forward(backend, qkv, lengths, spare, shape)
        dqkv, delta = backend.upload(np.full(qkv.shape, 7.0)), backend.upload(np.full((len(qkv), shape[0]), 7.0))
        backend.causal_attention_backward(x, o, lse, backend.upload(do), rows, dqkv, *shape, delta)
        return {"dqkv": dqkv}

    return op


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("lengths", "spare"), BATCHES, ids=str)
def test_forward_equals_the_definition(both, rng, shape, lengths, spare):
    qkv = make_qkv(rng, sum(lengths) + spare, shape)

    def op(backend):
        _, o, lse, _ = forward(backend, qkv, lengths, spare, shape)
        return {"o": o, "lse": lse}

    both.compare(op)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("lengths", "spare"), BATCHES, ids=str)
def test_backward_equals_the_definition(both, rng, shape, lengths, spare):
    qkv = make_qkv(rng, sum(lengths) + spare, shape)
    do = rng.normal(size=(len(qkv), shape[0] * shape[2]))
    op = gradient(qkv, do, lengths, spare, shape)
    both.compare(op)
    found, _ = both.run(op)
    np.testing.assert_array_equal(found["dqkv"][sum(lengths) :], 0)


def test_packed_sequences_do_not_see_each_other(both, rng):
    shape, lengths = (2, 1, 12), [7, 20, 3]
    qkv, do = make_qkv(rng, 30, shape), rng.normal(size=(30, 24))
    packed, _ = both.run(gradient(qkv, do, lengths, 0, shape))
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        alone, _ = both.run(gradient(qkv[rows], do[rows], [length], 0, shape))
        both.close(packed["dqkv"][rows], alone["dqkv"])
        start += length


def test_large_scores_do_not_overflow(both, rng):
    qkv = make_qkv(rng, 40, (1, 1, 8)) * 30

    def op(backend):
        _, o, lse, _ = forward(backend, qkv, [40], 0, (1, 1, 8))
        return {"o": o, "lse": lse}

    found, expected = both.run(op)
    np.testing.assert_allclose(found["o"], expected["o"], rtol=1e-2, atol=1e-2)
    both.close(found["lse"], expected["lse"])
