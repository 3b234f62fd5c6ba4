"""Recording, running and fetching; what is refused."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tritune.backends.numpy import NumpyBackend
from tritune.errors import DeviceError


@pytest.fixture
def backend(cpu):
    return cpu()


def test_one_submit_and_no_new_objects_a_run(backend, rng):
    arrays = rng.normal(size=(3, 4, 8)).astype(np.float32)
    x, y, z = (backend.empty((4, 8)) for _ in range(3))
    with backend.record() as program:
        backend.copy(x, y)
        backend.rms_norm_quant(y, None, 0.0, z, None, None)
        program.fetch(y)
        program.fetch(z)
    objects, size = backend.stats.objects, backend.stats.bytes_allocated
    for array in arrays:
        backend.write(x, array)
        before = backend.stats.submits
        program.run()
        np.testing.assert_array_equal(program.result(y), array)
        np.testing.assert_array_equal(program.result(z), array)
        assert backend.stats.submits == before + 1
    assert (backend.stats.objects, backend.stats.bytes_allocated) == (objects, size)


def test_recording_runs_nothing(backend):
    buffer = backend.upload(np.ones(8))
    before = backend.stats.submits
    with backend.record():
        backend.zero(buffer)
    assert backend.stats.submits == before
    assert backend.read(buffer).all()


def test_programs_chained_in_one_submit_see_each_other(backend):
    x, y, z = backend.upload(np.arange(4.0)), backend.empty((4,)), backend.empty((4,))
    with backend.record() as first:
        backend.copy(x, y)
    with backend.record() as second:
        backend.copy(y, z)
        backend.zero(x)
        second.fetch(z)
    before = backend.stats.submits
    backend.submit([first, second])
    assert backend.stats.submits == before + 1
    assert second.result(z).tolist() == [0, 1, 2, 3]
    assert not backend.read(x).any()


def test_results_are_of_the_run_and_copies(backend):
    buffer = backend.upload(np.ones(4))
    with backend.record() as program:
        program.fetch(buffer)
    program.run()
    first = program.result(buffer)
    backend.write(buffer, np.zeros(4))
    assert program.result(buffer).tolist() == [1] * 4
    program.run()
    assert program.result(buffer).tolist() == [0] * 4
    assert first.tolist() == [1] * 4


def test_programs_keep_their_buffers_and_scratch_alive(backend, rng):
    x = rng.normal(size=(3, 64)).astype(np.float32)
    source, codes, scales = backend.upload(x), backend.empty((3, 64), "i8"), backend.empty((3,))
    with backend.record() as program:
        backend.rms_norm_quant(source, None, 0.0, None, codes, scales)
        program.fetch(codes)
    del source
    backend.scratch("row", 1 << 16)  # larger than what the program was given
    gc.collect()
    others = [backend.upload(np.full((3, 64), 9.0)) for _ in range(8)]
    program.run()
    expected = NumpyBackend()
    wanted = expected.empty((3, 64), "i8")
    expected.rms_norm_quant(expected.upload(x), None, 0.0, None, wanted, expected.empty((3,)))
    np.testing.assert_array_equal(program.result(codes), expected.read(wanted))
    del others


def test_profile_names_the_ops_and_runs_them(backend):
    x = backend.upload(np.ones(8))
    with backend.record() as program:
        backend.zero(x)
        backend.zero(x)
        program.fetch(x)
    with backend.profile() as profile:
        program.run()
    assert profile.ops.keys() == {"zero", "copy"}
    assert all(op.seconds >= 0 for op in profile.ops.values())
    assert not program.result(x).any()


def test_wrong_use_of_programs_is_refused(backend):
    x, y = backend.empty((4,)), backend.empty((4,))
    with backend.record() as program:
        program.fetch(y)
        with pytest.raises(DeviceError, match="recorded already"), backend.record():
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
        backend.submit([other])


def test_a_recording_that_fails_leaves_the_backend_usable(backend):
    with pytest.raises(ZeroDivisionError), backend.record():
        raise ZeroDivisionError
    y = backend.upload(np.ones(4))
    backend.zero(y)
    assert not backend.read(y).any()


def test_buffers_that_do_not_fit_an_op_are_refused_by_name(backend):
    x, codes = backend.empty((2, 8)), backend.empty((2, 8), "i8")
    for wrong, found in ((backend.empty((8,)), r"f32 \[8\]"), (backend.empty((2, 8), "i8"), r"i8 \[2, 8\]")):
        with pytest.raises(DeviceError, match=rf"rms_norm_quant: normed is {found}, expected f32 \[2, 8\]"):
            backend.rms_norm_quant(x, None, 0.0, wrong, None, None)
    with pytest.raises(DeviceError, match="codes and scales are given together"):
        backend.rms_norm_quant(x, None, 0.0, None, codes, None)
    with pytest.raises(DeviceError, match="another backend"):
        backend.zero(NumpyBackend().empty((4,)))
    with pytest.raises(DeviceError, match="dx may not be dy"):
        backend.rms_norm_backward(x, backend.empty((8,)), 0.0, x, x, True)


def test_numbers_that_point_nowhere_touch_nothing(backend, rng):
    from tritune.backends.base import Rows

    table = backend.table(rng.normal(size=(3, 4)).astype(np.float32), "f32")
    x = backend.upload(np.ones((3, 4)))
    backend.embed(backend.upload(np.array([-1, 3, 2**31 - 1]), "i32"), table, x)
    assert not backend.read(x).any()
    out = backend.upload(np.ones((2, 4)))
    backend.scatter_rows(backend.upload(np.ones((3, 4))), backend.upload(np.array([2, -5, 2**30]), "i32"), out)
    assert not backend.read(out).any()
    rows = Rows(
        tokens=backend.empty((3,), "i32"),
        positions=backend.upload(np.array([7, 2, 2]), "i32"),  # beyond the table, beyond the block table, no such block
        sequence=backend.upload(np.array([0, 1, 0]), "i32"),
        q_start=backend.upload(np.array([0, 3]), "i32"),
        slot=backend.empty((3,), "i32"),
        multiplier=backend.empty((3,)),
        block_tables=backend.upload(np.array([[9]]), "i32"),
    )
    k, v = backend.empty((1, 1, 4, 4)), backend.empty((1, 1, 4, 4))
    qkv = backend.upload(rng.normal(size=(3, 12)))
    backend.rope_cache(qkv, backend.upload(np.ones((4, 4))), rows, backend.empty((3, 4)), k, v, 1, 1, 4)
    assert not backend.read(k).any()
    assert not backend.read(v).any()
