"""Buffers: zeros, transfers, views, arenas, and running out of memory."""

from __future__ import annotations

import gc
import re
import subprocess
import sys

import numpy as np
import pytest

from tiny_adapters import tiny_base
from tiny_chat import make_chat_model, open_chat_model
from tritune.backends.numpy import NumpyBackend
from tritune.errors import DeviceError, OutOfMemoryError
from tritune.models.cache import KVCache


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32", "u32", "i8"])
@pytest.mark.parametrize("size", [1, 3, 4, 127, 5003])
def test_round_trip(webgpu, rng, dtype, size):
    numbers = {
        "f32": np.float32,
        "f16": np.float16,
        "bf16": np.uint16,
        "i32": np.int32,
        "u32": np.uint32,
        "i8": np.int8,
    }
    array = rng.integers(-100, 100, size).astype(numbers[dtype])
    buffer = webgpu.upload(array, dtype)
    assert (buffer.shape, buffer.dtype, buffer.size) == ((size,), dtype, size)
    found = webgpu.read(buffer)
    assert found.dtype == numbers[dtype]
    np.testing.assert_array_equal(found, array)


def test_write_casts_and_takes_any_layout(webgpu, rng):
    array = rng.normal(size=(6, 4))
    buffer = webgpu.empty((4, 6))
    webgpu.write(buffer, array.T)
    np.testing.assert_array_equal(webgpu.read(buffer), array.T.astype(np.float32))


def test_shapes_without_elements_and_without_sides(webgpu):
    assert webgpu.read(webgpu.empty((0, 4))).shape == (0, 4)
    scalar = webgpu.upload(np.array(3.5))
    assert webgpu.read(scalar) == 3.5


def test_empty_is_zero_also_where_memory_is_used_again(opened):
    backend = opened(arena_bytes=1 << 16)
    for _ in range(3):
        buffers = [backend.empty((1000,)) for _ in range(20)]
        assert not any(np.asarray(backend.read(buffer)).any() for buffer in buffers)
        for buffer in buffers:
            backend.write(buffer, np.ones(1000))
        del buffers, buffer
        gc.collect()


def test_freed_memory_is_used_again(opened):
    backend = opened()
    backend.empty((1000,))
    before = backend.stats.bytes_allocated
    for _ in range(10_000):
        backend.empty((1000,))
    assert backend.stats.bytes_allocated == before


def test_buffers_made_one_after_the_other_share_an_arena(opened):
    """However many holes there are elsewhere: each arena that a dispatch binds costs the host a barrier."""
    backend = opened(arena_bytes=1 << 20)
    held = [backend.empty((1000,)) for _ in range(4000)]
    arenas = len({buffer.arena.serial for buffer in held})
    assert arenas > 3
    before = backend.stats.bytes_allocated
    del held[::2]
    gc.collect()
    together = [backend.empty((1000,)) for _ in range(40)]
    assert len({buffer.arena.serial for buffer in together}) == 1
    held += [backend.empty((1000,)) for _ in range(1900)]  # the holes of all others are still used
    assert backend.stats.bytes_allocated == before


def test_reserved_room_holds_what_comes(opened):
    backend = opened(arena_bytes=1 << 16)
    backend.reserve(1 << 20)
    before = backend.stats.bytes_allocated
    assert before >= 1 << 20
    backend.reserve(1 << 20)
    buffers = [backend.empty((10_000,)) for _ in range(26)]
    assert len({buffer.arena.serial for buffer in buffers}) == 1
    assert backend.stats.bytes_allocated == before
    del buffers
    gc.collect()
    assert backend.stats.bytes_allocated < 1 << 20


def test_room_that_cannot_be_reserved_is_no_error(opened):
    backend = opened(arena_bytes=1 << 16, memory_limit_bytes=1 << 20)
    backend.reserve(1 << 21)
    assert backend.empty((1000,)).size == 1000


def test_weights_of_all_layers_share_an_arena(opened, tmp_path):
    backend = opened(arena_bytes=1 << 12)
    layers = open_chat_model(make_chat_model(tmp_path / "model", layers=4), backend).device_model.layers
    matrices = [matrix for layer in layers for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    assert len({matrix.words.arena.serial for matrix in matrices}) == 1
    assert sum(matrix.nbytes for matrix in matrices) > 1 << 13


def test_keys_and_values_of_all_layers_share_an_arena(opened):
    config = tiny_base(layers=5).config
    backend = opened(arena_bytes=1 << 16)
    cache = KVCache(backend, config, 16)
    assert len({buffer.arena.serial for buffer in (*cache.k, *cache.v)}) == 1
    backend.device.max_buffer = cache.k[0].nbytes  # a device whose buffers may not be that large
    small = KVCache(backend, config, 16)
    assert len({buffer.arena.serial for buffer in (*small.k, *small.v)}) == 10


def test_a_large_buffer_is_given_back_to_the_driver(opened):
    backend = opened(arena_bytes=1 << 20)
    before = backend.stats.bytes_allocated
    large = backend.empty((1 << 20,))
    assert backend.stats.bytes_allocated >= before + (4 << 20)
    del large
    gc.collect()
    assert backend.stats.bytes_allocated == before


def test_many_buffers_few_objects(opened):
    backend = opened()
    buffers = [backend.empty((64, 3)) for _ in range(500)]
    assert backend.stats.objects < 5
    assert len({(buffer.arena.serial, buffer.offset) for buffer in buffers}) == 500


def test_view_shares_memory(webgpu, rng):
    array = rng.normal(size=(512,)).astype(np.float32)
    buffer = webgpu.upload(array)
    view = buffer.view(128, (2, 64))
    np.testing.assert_array_equal(webgpu.read(view), array[128:256].reshape(2, 64))
    webgpu.write(view, np.zeros((2, 64)))
    array[128:256] = 0
    np.testing.assert_array_equal(webgpu.read(buffer), array)


def test_view_keeps_its_buffer_alive(webgpu):
    view = webgpu.upload(np.arange(256.0)).view(64, (4,))
    gc.collect()
    others = [webgpu.upload(np.full(256, -1.0)) for _ in range(8)]
    assert webgpu.read(view).tolist() == [64, 65, 66, 67]
    del others


def test_writing_part_of_a_word_leaves_the_rest(webgpu):
    buffer = webgpu.upload(np.arange(64), "i8")
    webgpu.write(buffer.view(0, (5,)), np.full(5, -1))
    assert webgpu.read(buffer).tolist() == [-1] * 5 + list(range(5, 64))


@pytest.mark.parametrize(("start", "shape"), [(-64, (4,)), (64, (65,)), (128, (1,))])
def test_view_outside_is_refused(webgpu, start, shape):
    with pytest.raises(DeviceError, match="of a buffer of 128 elements"):
        webgpu.empty((128,)).view(start, shape)


def test_wrong_number_of_elements_is_refused(webgpu):
    with pytest.raises(DeviceError, match="write of 3 elements into a buffer of 4 f32"):
        webgpu.write(webgpu.empty((4,)), np.zeros(3))


def test_bf16_takes_raw_bits_only(webgpu):
    with pytest.raises(DeviceError, match="raw uint16 bits, found float64"):
        webgpu.upload(np.zeros(4), "bf16")


def test_a_buffer_of_another_backend_is_refused(webgpu):
    with pytest.raises(DeviceError, match="another backend"):
        webgpu.read(NumpyBackend().empty((4,)))


def test_larger_than_the_device_allows_is_out_of_memory(webgpu):
    with pytest.raises(OutOfMemoryError, match=r"4096\.0 GiB asked for"):
        webgpu.empty((1 << 40,))
    assert webgpu.read(webgpu.empty((4,))).tolist() == [0] * 4


def test_more_than_the_limit_is_out_of_memory(opened):
    backend = opened(memory_limit_bytes=1 << 20)
    kept = backend.empty((1 << 17,))
    with pytest.raises(OutOfMemoryError, match=r"1\.0 MiB asked for, 1\.0 MiB of the limit of 1\.0 MiB"):
        backend.empty((1 << 18,))
    assert not np.asarray(backend.read(kept)).any()


UNTIL_THE_DRIVER_REFUSES = """
import resource, sys
import numpy as np
from tritune.backends.webgpu import open_webgpu
from tritune.errors import OutOfMemoryError

backend = open_webgpu(sys.argv[1])
x, y = backend.upload(np.arange(8.0).reshape(2, 4)), backend.empty((2, 4))
with backend.record() as program:
    backend.gather_rows(x, backend.upload(np.array([1, 0]), "i32"), y)
backend.zero(y)
program.run()
backend.read(y)
with open("/proc/self/statm") as sizes:
    used = int(sizes.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), resource.RLIM_INFINITY))
blocks = []
try:
    while len(blocks) < 64:
        blocks.append(backend.empty((1 << 24,)))
except OutOfMemoryError as error:
    print(error)
backend.zero(y)
program.run()
assert backend.read(y).tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
backend.zero(blocks[-1])
blocks.clear()
backend.zero(backend.empty((1 << 24,)))
backend.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_a_driver_without_memory_is_out_of_memory_and_goes_on(webgpu):
    """The real driver refuses: an arena at first, then a buffer alone. What was there before is intact, programs run,
    and what is given back is used again."""
    if not webgpu.device.info.software:
        pytest.skip("the limit is that of the process, not of a GPU")
    device = f"webgpu:{webgpu.device.info.index}"
    command = [sys.executable, "-c", UNTIL_THE_DRIVER_REFUSES, device]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert re.search(r"llvmpipe.*: allocating 64\.0 MiB \([\d.]+ MiB in use\): .*[Mm]emory", result.stdout)
    assert len(result.stdout.splitlines()) == 1


def test_large_downloads_come_in_pieces(webgpu, monkeypatch, rng):
    from tritune.backends.webgpu import memory

    monkeypatch.setattr(memory, "_STAGING_BYTES", 64)
    array = rng.normal(size=333).astype(np.float32)
    np.testing.assert_array_equal(webgpu.read(webgpu.upload(array)), array)


def test_closed_backend_says_so(opened):
    backend = opened()
    buffer = backend.empty((4,))
    backend.close()
    backend.close()
    assert backend.stats.bytes_allocated == 0
    for call in (lambda: backend.empty((4,)), lambda: backend.read(buffer), lambda: backend.zero(buffer)):
        with pytest.raises(DeviceError, match="closed"):
            call()


def test_an_unclosed_backend_warns(webgpu):
    from tritune.backends.webgpu import open_webgpu

    backend = open_webgpu(f"webgpu:{webgpu.device.info.index}")
    with pytest.warns(ResourceWarning, match="was not closed"):
        del backend
        gc.collect()
