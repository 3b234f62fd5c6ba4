"""Buffers, views and tables in host memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tritune.errors import DeviceError, OutOfMemoryError


@pytest.fixture
def backend(cpu):
    return cpu()


@pytest.mark.parametrize("dtype", ["f32", "f16", "i32", "u32", "i8"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 7), (0, 4)])
def test_what_is_written_is_read(backend, rng, dtype, shape):
    array = rng.integers(0, 100, shape)
    buffer = backend.upload(array, dtype)
    assert buffer.address % 64 == 0
    np.testing.assert_array_equal(backend.read(buffer), array)
    assert not backend.read(backend.empty(shape, dtype)).any()


def test_views_share_memory(backend):
    buffer = backend.upload(np.arange(256.0))
    view = buffer.view(64, (2, 32))
    assert view.address == buffer.address + 256
    np.testing.assert_array_equal(backend.read(view), np.arange(64, 128).reshape(2, 32))
    backend.zero(view)
    assert backend.read(buffer)[[63, 64, 127, 128]].tolist() == [63, 0, 0, 128]
    assert backend.read(view.view(0, (64,))).shape == (64,)
    for start, shape in ((-1, (2,)), (0, (257,)), (256, (1,))):
        with pytest.raises(DeviceError, match="view of elements"):
            buffer.view(start, shape)


def test_a_view_keeps_the_memory_and_the_last_one_frees_it(backend):
    gc.collect()
    before = backend.stats.bytes_allocated
    buffer = backend.upload(np.arange(64.0))
    view = buffer.view(0, (64,))
    del buffer
    gc.collect()
    assert backend.stats.bytes_allocated == before + 256
    assert backend.read(view)[63] == 63
    del view
    gc.collect()
    assert backend.stats.bytes_allocated == before


def test_wrong_writes_are_refused(backend):
    with pytest.raises(DeviceError, match="write of 3 elements into a buffer of 4 f32"):
        backend.write(backend.empty((4,)), np.ones(3))
    with pytest.raises(DeviceError, match="raw uint16"):
        backend.upload(np.ones(4), "bf16")


def test_a_buffer_that_is_too_large_says_its_size(backend):
    with pytest.raises(OutOfMemoryError, match=r"no memory for .* MiB"):
        backend.empty((1 << 45,))


def test_tables_are_held_as_they_are(backend, rng):
    array = rng.integers(0, 2**16, (7, 12)).astype(np.uint16)
    table = backend.table(array, "bf16")
    assert (table.rows, table.columns, table.dtype, table.nbytes) == (7, 12, "bf16", 168)
    x = backend.empty((7, 12))
    backend.embed(backend.upload(np.arange(7), "i32"), table, x)
    bits = backend.read(x).view(np.uint32)
    np.testing.assert_array_equal(bits, array.astype(np.uint32) << 16)


@pytest.mark.parametrize("isa", ["portable", None])
def test_every_f16_is_widened_and_every_rounding_kept(cpu, rng, isa):
    backend = cpu(isa=isa)
    halves = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    x = backend.empty((1, 1 << 16))
    backend.embed(backend.empty((1,), "i32"), backend.table(halves.reshape(1, -1), "f16"), x)
    with np.errstate(invalid="ignore"):  # signalling NaNs, on some processors
        np.testing.assert_array_equal(backend.read(x)[0], halves.astype(np.float32))
    # Rounding happens on the way into the cache; at position 0 the angle is 0.
    from tritune.backends.base import Rows

    finite = halves[np.isfinite(halves)].astype(np.float32)
    between = (np.sort(finite)[1:] + np.sort(finite)[:-1]) / 2  # ties
    edges = np.array([65519, 65520, 1e9, -1e9, np.inf, -np.inf, 1e-8, -1e-8, 2.0**-25, 2.0**-24 * 1.5], np.float32)
    values = np.concatenate([between, np.nextafter(between, np.float32(1e9)), edges, rng.normal(size=100)])
    values = np.pad(values.astype(np.float32), (0, -values.size % 4))
    size = values.size
    zeros = backend.empty((1,), "i32")
    rows = Rows(
        zeros, zeros, zeros, backend.empty((2,), "i32"), zeros, backend.empty((1,)), backend.empty((1, 1), "i32")
    )
    k, v = backend.empty((1, 1, 1, size), "f16"), backend.empty((1, 1, 1, size), "f16")
    qkv = backend.upload(np.tile(values, 3).reshape(1, -1))
    backend.rope_cache(qkv, backend.empty((1, size)), rows, backend.empty((1, size)), k, v, 1, 1, size)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(backend.read(v)[0, 0, 0], values.astype(np.float16))
