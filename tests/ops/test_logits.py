"""logits and logits_backward against their definitions, in each table format, whole and in shards."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.errors import DeviceError

SHAPES = [(1, 8, 5), (3, 36, 129), (8, 64, 64), (9, 20, 127), (65, 100, 131)]
FORMATS = ["f32", "f16", "bf16"]


def stored(rng, rows, columns, dtype):
    """A table as a file holds it."""
    table = rng.normal(size=(rows, columns)).astype(np.float32)
    if dtype == "bf16":
        return (table.view(np.uint32) >> 16).astype(np.uint16)
    if dtype == "i8":
        return rng.integers(-128, 128, (rows, columns)).astype(np.int8)
    return table.astype(np.float16 if dtype == "f16" else np.float32)


def held(backend, table, dtype):
    """The table on a backend; int8 rows have scales that differ."""
    scales = 0.01 * (1 + np.arange(len(table), dtype=np.float32)) if dtype == "i8" else None
    if scales is not None and backend.name.startswith("webgpu"):
        with pytest.raises(DeviceError, match="head int8: WebGPU reads the output head as stored"):
            backend.table(table, dtype, scales)
        pytest.skip("WebGPU has no int8 head")
    return backend.table(table, dtype, scales)


def logits(x, table, dtype):
    def op(backend):
        out = backend.upload(np.full((x.shape[0], table.shape[0]), 7.0))
        backend.logits(backend.upload(x), held(backend, table, dtype), out)
        return {"out": out}

    return op


def logits_backward(dlogits, table, dtype):
    def op(backend):
        dx = backend.upload(np.full((dlogits.shape[0], table.shape[1]), 7.0))
        backend.logits_backward(backend.upload(dlogits), held(backend, table, dtype), dx)
        return {"dx": dx}

    return op


@pytest.mark.parametrize("dtype", [*FORMATS, "i8"])
@pytest.mark.parametrize(("rows", "columns", "vocabulary"), SHAPES)
def test_equals_the_definition(both, rng, rows, columns, vocabulary, dtype):
    table = stored(rng, vocabulary, columns, dtype)
    both.compare(logits(rng.normal(size=(rows, columns)), table, dtype))


@pytest.mark.parametrize("dtype", [*FORMATS, "i8"])
@pytest.mark.parametrize(("rows", "columns", "vocabulary"), SHAPES)
def test_backward_equals_the_definition(both, rng, rows, columns, vocabulary, dtype):
    table = stored(rng, vocabulary, columns, dtype)
    both.compare(logits_backward(rng.normal(size=(rows, vocabulary)), table, dtype))


@pytest.mark.parametrize("dtype", ["f16", "i8"])
def test_backward_is_the_transpose(reference, rng, dtype):
    table, x, dlogits = stored(rng, 13, 8, dtype), rng.normal(size=(3, 8)), rng.normal(size=(3, 13))
    out = np.asarray(reference.read(logits(x, table, dtype)(reference)["out"]))
    dx = np.asarray(reference.read(logits_backward(dlogits, table, dtype)(reference)["dx"]))
    np.testing.assert_allclose((out * dlogits).sum(), (dx * x).sum(), rtol=1e-12)
