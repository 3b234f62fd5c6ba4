"""What the op tests do not ask of head and attention: the same bits on any number of threads, at sizes that split."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.base import Rows
from tritune.backends.cpu.loading import native_problem, supported_isas

ISAS = [] if native_problem() else supported_isas()


def rows_of(backend, positions, sequence, q_start, tables=None):
    zeros = np.zeros(len(positions))
    return Rows(
        tokens=backend.upload(zeros, "i32"),
        positions=backend.upload(positions, "i32"),
        sequence=backend.upload(sequence, "i32"),
        q_start=backend.upload(q_start, "i32"),
        slot=backend.upload(zeros, "i32"),
        multiplier=backend.upload(zeros),
        block_tables=None if tables is None else backend.upload(tables, "i32"),
    )


def head(backend, count):
    """Logits, loss and gradients of ``count`` rows."""
    rng = np.random.default_rng(1)
    table = backend.table(
        (rng.normal(size=(5003, 72)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), "bf16"
    )
    x, out, dx = backend.upload(rng.normal(size=(count, 72))), backend.empty((count, 5003)), backend.empty((count, 72))
    backend.logits(x, table, out)
    logits = backend.read(out)
    nll = backend.empty((count,))
    targets, ones = backend.upload(rng.integers(0, 5003, count), "i32"), backend.upload(np.ones(count))
    backend.cross_entropy(out, targets, ones, nll, True)
    backend.logits_backward(out, table, dx)
    return [logits, backend.read(nll), backend.read(out), backend.read(dx)]


def sampled(backend):
    """Rough and refined logits of a few rows."""
    rng = np.random.default_rng(2)
    table = backend.table(rng.normal(size=(5003, 72)).astype(np.float16), "f16")
    x, out = backend.upload(rng.normal(size=(2, 72))), backend.empty((2, 5003))
    settings = backend.upload(np.array([[0, 1, 0, 1.2], [0.8, 0.9, 0, 1]]))
    state = backend.upload(np.array([[0, 1, 0, 0], [40, 1, 0, 0]]), "u32")
    seen = backend.upload(rng.integers(0, 2**32, (2, -(-5003 // 32))), "u32")
    backend.sampling_logits(x, table, out, settings, state, seen, None)
    return [backend.read(out)]


def attention(backend):
    """Forward and backward inside of sequences, and over a cache with few and with many rows."""
    rng, shape = np.random.default_rng(3), (8, 2, 32)
    lengths = [150, 1, 70]
    positions = np.concatenate([np.arange(n) for n in lengths])
    rows = rows_of(backend, positions, np.repeat(np.arange(3), lengths), np.cumsum([0, *lengths]))
    count = len(positions)
    qkv = backend.upload(rng.normal(size=(count, 12 * 32)))
    o, do, lse, delta = (backend.upload(rng.normal(size=(count, n))) for n in (256, 256, 8, 8))
    dqkv = backend.empty(qkv.shape)
    backend.causal_attention(qkv, rows, o, lse, *shape)
    backend.causal_attention_backward(qkv, o, lse, do, rows, dqkv, *shape, delta)
    found = [backend.read(b) for b in (o, lse, dqkv)]
    caches = [backend.upload(rng.normal(size=(16, 2, 32, 32)), "f16") for _ in range(2)]
    for start, n in ((400, 1), (300, 5), (100, 300)):
        q, out = backend.upload(rng.normal(size=(n, 256))), backend.empty((n, 256))
        tables = np.arange(16)[None]
        rows = rows_of(backend, np.arange(start, start + n), np.zeros(n), np.array([0, n]), tables)
        backend.paged_attention(q, *caches, rows, out, *shape)
        found.append(backend.read(out))
    return found


@pytest.mark.parametrize("isa", ISAS)
def test_results_do_not_depend_on_the_number_of_threads(cpu, isa):
    def everything(backend):
        return [*head(backend, 1), *head(backend, 3), *head(backend, 70), *sampled(backend), *attention(backend)]

    alone = everything(cpu(1, isa))
    for threads in (2, 3, 7):
        for found, expected in zip(everything(cpu(threads, isa)), alone, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_the_head_of_a_row_does_not_depend_on_the_rows_beside_it(cpu, isa):
    """So that the stored rows that sampling reads one by one are the full head's, bit for bit."""
    backend, rng = cpu(2, isa), np.random.default_rng(4)
    table = backend.table(rng.normal(size=(301, 100)).astype(np.float32), "f32")
    x = rng.normal(size=(4, 100))
    outs = []
    for count in (1, 2, 3, 4):
        out = backend.empty((count, 301))
        backend.logits(backend.upload(x[:count]), table, out)
        outs.append(backend.read(out)[0])
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])
    tail = backend.empty((1, 37))
    backend.logits(backend.upload(x[:1]), backend.table(np.asarray(table.buffer.array[264:]), "f32"), tail)
    np.testing.assert_array_equal(backend.read(tail)[0], outs[0][264:])
