"""The attention tiles of GPUs and split gradients, on whatever device there is."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.base import Rows
from tritune.backends.numpy import NumpyBackend
from tritune.backends.webgpu.attention_tiles import GPU, AttentionTile, plan_attention

LENGTHS, SPARE = [5, 70, 1, 33], 3
SHAPE = (8, 2, 48)


@pytest.fixture
def cut(webgpu):
    """Sets the tile and the splits; the device's own come back after the test."""

    def with_plan(tile, splits):
        webgpu.plan_attention = lambda *_, **__: tile
        webgpu.plan_key_splits = lambda *_: splits
        return webgpu

    yield with_plan
    del webgpu.plan_attention, webgpu.plan_key_splits


def gradients(backend, qkv, do):
    heads, _, head_dim = SHAPE
    positions = np.concatenate([*[np.arange(n) for n in LENGTHS], np.full(SPARE, -1)])
    sequence = np.concatenate([np.repeat(np.arange(len(LENGTHS)), LENGTHS), np.zeros(SPARE)])
    zeros = backend.upload(np.zeros(len(positions)), "i32")
    rows = Rows(
        tokens=zeros,
        positions=backend.upload(positions, "i32"),
        sequence=backend.upload(sequence, "i32"),
        q_start=backend.upload(np.cumsum([0, *LENGTHS]), "i32"),
        slot=zeros,
        multiplier=backend.upload(np.ones(len(positions))),
    )
    x, gradient = backend.upload(qkv), backend.upload(do)
    o, dqkv = backend.upload(np.full((len(qkv), heads * head_dim), 7.0)), backend.upload(np.full(qkv.shape, 7.0))
    lse, delta = (backend.upload(np.full((len(qkv), heads), 7.0)) for _ in range(2))
    backend.causal_attention(x, rows, o, lse, *SHAPE)
    backend.causal_attention_backward(x, o, lse, gradient, rows, dqkv, *SHAPE, delta)
    return [np.asarray(backend.read(buffer)) for buffer in (o, lse, dqkv)]


@pytest.mark.parametrize(
    ("tile", "splits"), [(AttentionTile(8, 8, 2, True), 4), (AttentionTile(4, 16, 1, False), 2)], ids=["eight", "wide"]
)
def test_equals_the_definition_however_it_is_cut(cut, rng, tile, splits):
    heads, kv_heads, head_dim = SHAPE
    count = sum(LENGTHS) + SPARE
    qkv = rng.normal(size=(count, (heads + 2 * kv_heads) * head_dim))
    do = rng.normal(size=(count, heads * head_dim))
    expected = gradients(NumpyBackend(np.float64), qkv, do)
    for found, wanted in zip(gradients(cut(tile, splits), qkv, do), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * float(np.sqrt(np.mean(wanted**2))))


def paged_numbers(rng):
    return rng.normal(size=(62, 4 * 64)), rng.normal(size=(2, 15, 1, 16, 64)).astype(np.float16)


def attend(backend, q, caches):
    """Rows of three sequences, one of them spare, with a paged cache."""
    positions, sequence = np.array([*range(30, 70), -1, *range(20), 3]), np.repeat([0, 1, 2], [41, 20, 1])
    zeros = backend.upload(np.zeros(len(positions)), "i32")
    rows = Rows(
        tokens=zeros,
        positions=backend.upload(positions, "i32"),
        sequence=backend.upload(sequence, "i32"),
        q_start=backend.upload(np.array([0, 41, 61, 62]), "i32"),
        slot=zeros,
        multiplier=backend.upload(np.ones(len(positions))),
        block_tables=backend.upload(np.arange(15).reshape(3, 5)[::-1], "i32"),
    )
    o = backend.upload(np.full(q.shape, 7.0))
    k, v = (backend.upload(cache, "f16") for cache in caches)
    backend.paged_attention(backend.upload(q), k, v, rows, o, 4, 1, 64)
    return np.asarray(backend.read(o))


def test_paged_rows_of_several_sequences(cut, rng):
    numbers = paged_numbers(rng)
    expected = attend(NumpyBackend(np.float64), *numbers)
    np.testing.assert_allclose(attend(cut(GPU[0], 1), *numbers), expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("splits", [1, 2])
def test_attention_longer_than_a_submit_may_be_is_several_dispatches(opened, rng, splits):
    """Such as that of a long row on a small GPU: each tile's sums are the same, whichever dispatch it is in."""
    heads, kv_heads, head_dim = SHAPE
    count = sum(LENGTHS) + SPARE
    qkv = rng.normal(size=(count, (heads + 2 * kv_heads) * head_dim))
    do = rng.normal(size=(count, heads * head_dim))
    numbers = paged_numbers(rng)
    results, submits = [], []
    for share in (1e-9, 3.0, 1e9):  # of a submit that causal_attention takes by estimate: all, some and one tile each
        backend = opened()
        seconds = 2 * 2.0 * count**2 * heads * head_dim / backend.device.rates.flops
        backend.device.submit_seconds = seconds / share
        backend.plan_key_splits = lambda *_: splits
        before = backend.stats.queue_submits
        results.append([*gradients(backend, qkv, do), attend(backend, *numbers)])
        submits.append(backend.stats.queue_submits - before)
    for found in results[1:]:
        for some, whole in zip(found, results[0], strict=True):
            np.testing.assert_array_equal(some, whole)
    tiles = -(-count // backend.plan_attention(head_dim).size)
    assert submits[0] < submits[1] < submits[2]
    assert submits[2] - submits[0] >= 4 * (tiles - 1)


@pytest.mark.parametrize("storage", [16 << 10, 32 << 10, 48 << 10])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_tiles_fit_the_workgroup_memory(storage, head_dim):
    for operands, sums in ((1, 1), (2, 2)):
        tile = plan_attention(False, storage, head_dim, operands=operands, sums=sums)
        assert tile in GPU
        assert tile.workgroup_bytes(head_dim, operands) <= storage or (storage, head_dim, operands) == (
            16 << 10,
            256,
            2,
        )
