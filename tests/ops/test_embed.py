"""embed against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.webgpu import WebGPUOptions, open_webgpu


def make_table(rng, rows, columns, dtype):
    values = rng.normal(size=(rows, columns)).astype(np.float32)
    if dtype == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16 if dtype == "f16" else np.float32)


def embed(array, dtype, ids):
    def op(backend):
        x = backend.empty((len(ids), array.shape[1]))
        backend.embed(backend.upload(ids, "i32"), backend.table(array, dtype), x)
        return {"x": x}

    return op


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("rows", "columns", "count"), [(1, 4, 1), (127, 12, 3), (13, 516, 129)])
def test_every_format_is_expanded_exactly(both, rng, dtype, rows, columns, count):
    array = make_table(rng, rows, columns, dtype)
    both.compare(embed(array, dtype, rng.integers(0, rows, count)), "exact")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_sharded_table_gives_the_same_rows(webgpu, reference, rng, dtype):
    array = make_table(rng, 131, 64, dtype)
    ids = np.concatenate([np.arange(131), rng.integers(0, 131, 20)])
    small = open_webgpu("webgpu", WebGPUOptions(max_binding_bytes=41 * array.itemsize * 64))
    try:
        # Only the table is sharded: the other buffers of the op must fit the small limit.
        parts = [ids[start : start + 20] for start in range(0, len(ids), 20)]
        assert len(small.table(array, dtype).shards) == 4
        for part in parts:
            op = embed(array, dtype, part)
            found, expected = small.read(op(small)["x"]), reference.read(op(reference)["x"])
            np.testing.assert_array_equal(found, expected)
    finally:
        small.close()
