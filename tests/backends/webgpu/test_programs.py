"""Recording, running and fetching; the dispatch convention; what goes wrong on a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tritune.backends.numpy import NumpyBackend
from tritune.backends.webgpu import WebGPUBackend, few_rows, prepare
from tritune.backends.webgpu.buffers import covering
from tritune.backends.webgpu.prepare import pack_params
from tritune.errors import DeviceError, DeviceLostError


def smoke(backend, x, y, offset=0.5, rows=None):
    """y[r] = (offset + sum of x[r], its maximum, the place of the maximum)."""
    count, columns = x.shape
    backend.dispatch("smoke", params=[count, columns, offset], buffers=[x, y], grid=(rows or count, 1, 1))


def expected(x, offset=0.5):
    numbers = x.astype(np.int64)
    return np.stack([numbers.sum(1) + offset, numbers.max(1), numbers.argmax(1)], axis=1)


@pytest.mark.parametrize("subgroups", [True, False])
@pytest.mark.parametrize("workgroup_size", [1, 4, 64, 256])
def test_reductions(opened, rng, subgroups, workgroup_size):
    backend = opened(subgroups=subgroups, workgroup_size=workgroup_size)
    x = rng.integers(-128, 128, (5, 300)).astype(np.int8)
    y = backend.empty((5, 3))
    smoke(backend, backend.upload(x, "i8"), y)
    np.testing.assert_array_equal(backend.read(y), expected(x))


def test_one_submit_and_no_new_objects_a_run(webgpu, rng):
    arrays = [rng.integers(-128, 128, (2, 8)).astype(np.int8) for _ in range(3)]
    x, y, z = webgpu.empty((2, 8), "i8"), webgpu.empty((2, 3)), webgpu.empty((2, 3))
    with webgpu.record() as program:
        smoke(webgpu, x, y)
        smoke(webgpu, x, z, offset=-2.0)
        program.fetch(y)
        program.fetch(z)
    objects, size = webgpu.stats.objects, webgpu.stats.bytes_allocated
    for array in arrays:
        webgpu.write(x, array)
        before = webgpu.stats.submits
        program.run()
        np.testing.assert_array_equal(program.result(y), expected(array))
        np.testing.assert_array_equal(program.result(z), expected(array, -2.0))
        assert webgpu.stats.submits == before + 1
    assert (webgpu.stats.objects, webgpu.stats.bytes_allocated) == (objects, size)


def test_recording_runs_nothing(webgpu):
    buffer = webgpu.upload(np.ones(8))
    before = webgpu.stats.submits
    with webgpu.record():
        webgpu.zero(buffer)
    assert webgpu.stats.submits == before
    assert np.asarray(webgpu.read(buffer)).all()


def test_programs_chained_in_one_submit_see_each_other(webgpu):
    table = webgpu.table(np.arange(32, dtype=np.float32).reshape(4, 8), "f32")
    x, out = webgpu.upload(np.ones((1, 8))), webgpu.empty((1, 4))
    with webgpu.record() as first:
        webgpu.logits(x, table, out)
        first.fetch(out)
    with webgpu.record() as second:
        webgpu.logits_backward(out, table, x)
        second.fetch(x)
    before = webgpu.stats.submits
    webgpu.submit([first, second, first])
    assert webgpu.stats.submits == before + 1
    weights = np.arange(32).reshape(4, 8)
    dx = weights.sum(1) @ weights
    np.testing.assert_array_equal(second.result(x)[0], dx)
    np.testing.assert_array_equal(first.result(out)[0], weights @ dx)


def test_results_are_copies(webgpu):
    buffer = webgpu.upload(np.ones(4))
    with webgpu.record() as program:
        program.fetch(buffer)
    program.run()
    first = program.result(buffer)
    webgpu.write(buffer, np.zeros(4))
    program.run()
    assert program.result(buffer).tolist() == [0] * 4
    assert first.tolist() == [1] * 4


def test_programs_keep_their_buffers_alive(webgpu):
    x, y = webgpu.upload(np.ones((1, 4)), "i8"), webgpu.empty((1, 3))
    with webgpu.record() as program:
        smoke(webgpu, x, y)
        program.fetch(y)
    del x
    others = [webgpu.upload(np.full(4, 9), "i8") for _ in range(8)]
    program.run()
    assert program.result(y).tolist() == [[4.5, 1, 0]]
    del others


def test_bind_groups_and_pipelines_are_made_once(webgpu):
    x, y = webgpu.upload(np.ones((1, 4)), "i8"), webgpu.empty((1, 3))
    smoke(webgpu, x, y)
    before = webgpu.stats.objects
    for _ in range(3):
        smoke(webgpu, x, y)
    assert webgpu.stats.objects == before


def test_a_grid_beyond_the_limit_is_folded(webgpu):
    rows = 70_001
    x = np.arange(rows * 4).reshape(rows, 4).astype(np.int8)
    y = webgpu.empty((rows, 3))
    smoke(webgpu, webgpu.upload(x, "i8"), y)
    np.testing.assert_array_equal(webgpu.read(y), expected(x))


def test_wrong_use_of_programs_is_refused(webgpu):
    x, y = webgpu.empty((1, 4), "i8"), webgpu.empty((1, 3))
    with webgpu.record() as program:
        program.fetch(y)
        with pytest.raises(DeviceError, match="recorded already"), webgpu.record():
            pass
        with pytest.raises(DeviceError, match="recording has ended"):
            program.run()
    with pytest.raises(DeviceError, match="before the program has run"):
        program.result(y)
    program.run()
    with pytest.raises(DeviceError, match="does not fetch"):
        program.result(x)
    with pytest.raises(DeviceError, match="inside of the recording"):
        program.fetch(x)
    with NumpyBackend().record() as other:
        pass
    with pytest.raises(DeviceError, match="another backend"):
        webgpu.submit([other])


def test_a_recording_that_fails_leaves_the_backend_usable(webgpu):
    with pytest.raises(ZeroDivisionError), webgpu.record():
        raise ZeroDivisionError
    y = webgpu.upload(np.ones(4))
    webgpu.zero(y)
    assert not np.asarray(webgpu.read(y)).any()


def test_overlapping_buffers_are_refused(webgpu):
    buffer = webgpu.empty((256,))
    with pytest.raises(DeviceError, match="kernel smoke: buffers 0 and 1 overlap"):
        smoke(webgpu, buffer.view(0, (1, 128)), buffer.view(64, (1, 3)))


def test_views_side_by_side_can_be_bound_together(webgpu):
    buffer = webgpu.empty((256,))
    smoke(webgpu, buffer.view(0, (1, 64)), buffer.view(64, (1, 3)))
    assert webgpu.read(buffer)[64:67].tolist() == [0.5, 0, 0]


def test_wrong_number_of_buffers_is_refused(webgpu):
    with pytest.raises(DeviceError, match=r"kernel smoke .* declares 2 buffers, 1 were given"):
        webgpu.dispatch("smoke", params=[1, 4, 0.5], buffers=[webgpu.empty((4,))], grid=(1, 1, 1))
    most = webgpu.device.max_bindings
    many = [webgpu.empty((4,)) for _ in range(most + 1)]
    with pytest.raises(DeviceError, match=f"binds {most + 1} buffers, the device's limit is {most}"):
        webgpu.dispatch("smoke", params=[1], buffers=many, grid=(1, 1, 1))


def test_missing_parameters_are_refused(webgpu):
    x, y = webgpu.empty((1, 4), "i8"), webgpu.empty((1, 3))
    with pytest.raises(DeviceError, match="kernel embed"):
        webgpu.dispatch(
            "embed", params=[1], buffers=[x, y, webgpu.empty((4,))], grid=(1, 1, 1), variant={"format": "f32"}
        )


def test_an_unknown_kernel_or_variant_is_named(webgpu):
    with pytest.raises(DeviceError, match="kernel nothing"):
        webgpu.dispatch("nothing", params=[], buffers=[], grid=(1, 1, 1))
    with pytest.raises(DeviceError, match=r"kernel logits_gemv .*format"):
        webgpu.dispatch("logits_gemv", params=[], buffers=[], grid=(1, 1, 1))


def test_a_kernel_that_does_not_compile_is_named(webgpu):
    buffers = [webgpu.empty((4,)) for _ in range(3)]
    with pytest.raises(DeviceError, match=r"compiling kernel logits_gemv .*f64x2") as error:
        variant = few_rows.GemvShape(64, 16, 1, 1).variant(1) | {"format": "f64", "rows": 1, "wide": False}
        webgpu.dispatch("logits_gemv", params=[1, 1, 4, 1, 0], buffers=buffers, grid=(1, 1, 1), variant=variant)
    assert "\n" not in str(error.value)


def test_a_buffer_beyond_the_binding_limit_is_named(opened):
    backend = opened(max_binding_bytes=1024)
    with pytest.raises(DeviceError, match=r"kernel smoke: a buffer i8 \(1, 2048\) of 2\.0 KiB .* limit of 1\.0 KiB"):
        smoke(backend, backend.empty((1, 2048), "i8"), backend.empty((1, 3)))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("rows", [3, 11])
def test_tables_are_sharded_under_a_binding_limit(opened, rng, dtype, rows):
    table = rng.normal(size=(1000, 32)).astype(np.float32)
    if dtype == "bf16":
        table = (table.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype == "f16":
        table = table.astype(np.float16)
    x, dlogits = rng.normal(size=(rows, 32)), rng.normal(size=(rows, 1000))
    tokens = rng.integers(0, 1000, rows)
    tokens[:3] = 0, 384, 999  # 384: the first row of a shard of f32

    def run(backend):
        handle = backend.table(table, dtype)
        assert (handle.rows, handle.columns) == (1000, 32)
        out, dx, embedded = backend.empty((rows, 1000)), backend.empty((rows, 32)), backend.empty((rows, 32))
        backend.logits(backend.upload(x), handle, out)
        backend.logits_backward(backend.upload(dlogits), handle, dx)
        backend.embed(backend.upload(tokens, "i32"), handle, embedded)
        return handle, [np.asarray(backend.read(buffer)) for buffer in (out, dx, embedded)]

    sharded, found = run(opened(max_binding_bytes=48 << 10))
    assert [shard.first_row for shard in sharded.shards] == ([0, 384, 768] if dtype == "f32" else [0, 768])
    _, wanted = run(NumpyBackend(np.float64))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


def test_a_lost_device_is_reported_by_every_later_call(opened):
    backend = opened()
    y = backend.upload(np.ones(8))
    with backend.record() as program:
        backend.zero(y)
        program.fetch(y)
    program.run()
    backend.device.handle.destroy()
    for call in (program.run, backend.synchronize, lambda: backend.read(y), lambda: program.result(y)):
        with pytest.raises(DeviceLostError, match="device was lost"):
            call()


def test_closing_one_backend_leaves_the_others(opened):
    one, other = opened(), opened()
    y = other.upload(np.ones(4))
    one.close()
    other.zero(y)
    other.synchronize()
    assert not np.asarray(other.read(y)).any()


def test_parameters_are_packed_in_order():
    assert pack_params([1, 0.5]) == np.array([1, np.float32(0.5).view(np.uint32), 0, 0], np.uint32).tobytes()
    assert pack_params([-1, True, np.int64(3), np.float32(2)]) == (
        np.array([2**32 - 1, 1, 3, np.float32(2).view(np.uint32)], np.uint32).tobytes()
    )
    assert len(pack_params([])) == 16
    assert len(pack_params([0] * 5)) == 32
    with pytest.raises(DeviceError, match="65 parameters"):
        pack_params([0] * 65)


def test_a_long_submit_is_cut_and_counts_as_one(opened, rng):
    backend = opened(submit_seconds=1e-5)  # less than any dispatch of an op takes by estimate
    table = backend.table(rng.integers(-3, 4, (8, 8)).astype(np.float32), "f32")
    x, y, z = backend.upload(np.ones((1, 8))), backend.empty((1, 8)), backend.empty((1, 8))
    with backend.record() as first:
        for source, goal in ((x, y), (y, z)) * 8:
            backend.logits(source, table, goal)
        first.fetch(y)
    with backend.record() as second:
        backend.copy(z, x)
        second.fetch(x)
    parts, before = backend.stats.queue_submits, backend.stats.submits
    backend.submit([first, second])
    assert backend.stats.submits == before + 1
    assert backend.stats.queue_submits > parts + 2
    whole = opened(submit_seconds=100.0)
    assert whole.device.submit_seconds > backend.device.submit_seconds
    np.testing.assert_array_equal(second.result(x), backend.read(z))
    np.testing.assert_array_equal(first.result(y), backend.read(y))


def test_results_of_the_last_two_runs_are_kept(webgpu):
    x = webgpu.empty((4,))
    with webgpu.record() as program:
        program.fetch(x)
    webgpu.write(x, np.full(4, 1.0))
    program.run()
    with pytest.raises(DeviceError, match="before the program has run"):
        program.previous_result(x)
    webgpu.write(x, np.full(4, 2.0))
    program.run()
    assert program.previous_result(x).tolist() == [1] * 4
    webgpu.write(x, np.full(4, 3.0))
    program.run()
    assert program.previous_result(x).tolist() == [2] * 4
    assert program.result(x).tolist() == [3] * 4
    webgpu.submit([program, program])  # twice in one submit
    assert program.previous_result(x).tolist() == program.result(x).tolist() == [3] * 4


def test_fetched_buffers_that_lie_side_by_side_are_one_copy(webgpu, rng):
    together = webgpu.empty_together(((3,), "i32"), ((5,), "f32"), ((130,), "u32"))
    apart = webgpu.empty((40,))
    views = [together[2].view(64, (66,)), together[2].view(64, (2,))]
    with webgpu.record() as program:
        for buffer in (apart, *reversed(together), *views):
            program.fetch(buffer)
    assert len(program.copies) <= 2
    for _ in range(2):
        for buffer in (apart, *together):
            webgpu.write(buffer, rng.integers(0, 1000, buffer.size))
        program.run()
        for buffer in (apart, *together, *views):
            np.testing.assert_array_equal(program.result(buffer), webgpu.read(buffer))


def test_the_host_is_at_most_two_submits_ahead(webgpu, monkeypatch):
    waits = []
    wait_for = webgpu.device.wait_for
    monkeypatch.setattr(webgpu.device, "wait_for", lambda submission: (waits.append(submission), wait_for(submission)))
    x = webgpu.empty((4,))
    with webgpu.record() as program:
        webgpu.zero(x)
    for _ in range(6):
        program.run()
    assert len(waits) >= 4
    assert waits == sorted(waits)


@pytest.mark.parametrize("dynamic", [True, False])
def test_without_native_code_dispatches_are_recorded_from_python(opened, rng, monkeypatch, dynamic):
    monkeypatch.setitem(__import__("sys").modules, "tritune.backends.cpu._native", None)
    backend = opened(dynamic_offsets=dynamic)
    assert backend._runner._encoder._encode.__name__ == "from_python"
    x = rng.integers(-128, 128, (2, 8)).astype(np.int8)
    bound, y, z = backend.upload(x, "i8"), backend.empty((2, 3)), backend.upload(np.ones((4,)))
    with backend.record() as program:
        smoke(backend, bound, y)
        backend.zero(z)
        smoke(backend, bound, y, offset=-2.0)
    program.run()
    np.testing.assert_array_equal(backend.read(y), expected(x, -2.0))
    assert backend.read(z).tolist() == [0] * 4


@pytest.mark.parametrize("dynamic", [True, False])
def test_other_parts_of_the_same_memory_share_a_bind_group(opened, rng, dynamic):
    groups = run_on_three_parts(opened(dynamic_offsets=dynamic), rng)
    assert len(groups) == (1 if dynamic else 3)


def test_offsets_beyond_what_a_dispatch_can_give(opened, rng, monkeypatch):
    monkeypatch.setattr(prepare, "_OFFSETS", 512)
    assert len(run_on_three_parts(opened(), rng)) == 3


def run_on_three_parts(backend, rng):
    """Each of three dispatches in a range of its own; their bind groups."""
    arrays = [rng.integers(-128, 128, (2, 8)).astype(np.int8) for _ in range(3)]
    inputs, outputs = [backend.upload(x, "i8") for x in arrays], [backend.empty((2, 3)) for _ in range(3)]
    with backend.record() as program:
        for number, (x, y) in enumerate(zip(inputs, outputs, strict=True)):
            smoke(backend, x, y, offset=float(number))
    program.run()
    for number, (x, y) in enumerate(zip(arrays, outputs, strict=True)):
        np.testing.assert_array_equal(backend.read(y), expected(x, number))
    return {id(dispatch.group) for dispatch in program.dispatches}


def test_a_device_with_few_dynamic_offsets_has_none(opened):
    """WebGPU promises 4, a kernel may have 8 buffers."""
    dynamic = "max-dynamic-storage-buffers-per-pipeline-layout"
    backend = opened()
    info = replace(backend.device.info, limits={**backend.device.info.limits, dynamic: 4})
    poor = WebGPUBackend(info)
    assert (backend._preparer.shaders.dynamic(8), poor._preparer.shaders.dynamic(8)) == (True, False)
    poor.close()


def test_small_buffers_of_one_block_are_seen_through_one_range(webgpu):
    a, b, c = webgpu.empty_together(((3,), "i32"), ((5,), "f32"), ((64,), "u32"))
    apart = webgpu.empty((40,))
    tight, at = covering([a, b], [c, apart])
    assert (tight.offset, tight.nbytes, at) == (a.offset, 288, [0, 64])
    assert covering([a, c], [b]) is None
