"""Profiles: every op and kernel of a program is there, with what it did; programs do the same as without one."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.base import Rows
from tritune.backends.numpy import NumpyBackend
from tritune.backends.profile import Profile
from tritune.backends.webgpu import few_rows_attention
from tritune.backends.webgpu.few_rows_attention import AttentionShape
from tritune.errors import DeviceError
from tritune.ops.rope import rope_table


@pytest.fixture
def recorded(webgpu):
    """A program of two logits and a scatter_rows, whose zero belongs to it."""
    table = webgpu.table(np.ones((40, 8), np.float32), "f32")
    x, out, index, rows = webgpu.upload(np.ones((2, 8))), webgpu.empty((2, 40)), webgpu.upload(np.arange(2), "i32"), 0
    rows = webgpu.upload(np.full((4, 8), 7.0))
    with webgpu.record() as program:
        webgpu.logits(x, table, out)
        webgpu.logits(x, table, out)
        webgpu.scatter_rows(x, index, rows)
        program.fetch(rows)
    return program, rows, out


def test_a_profile_counts_ops_kernels_and_work(webgpu, recorded):
    program, rows, out = recorded
    before = webgpu.stats.submits
    with webgpu.profile() as profile:
        program.run()
        program.run()
    assert webgpu.stats.submits == before + 2
    assert program.result(rows).tolist() == [[1] * 8] * 2 + [[0] * 8] * 2
    assert webgpu.read(out).tolist() == [[8] * 40] * 2
    assert set(profile.ops) == {"logits", "scatter_rows"}
    logits, scatter = profile.ops["logits"], profile.ops["scatter_rows"]
    assert (logits.calls, scatter.calls) == (4, 2)
    assert set(scatter.kernels) == {"zero", "scatter_rows"}
    assert logits.flops == 4 * 2 * 2 * 8 * 40
    assert logits.nbytes == 4 * 4 * (2 * 8 + 2 * 40 + 8 * 40)
    assert all(op.seconds > 0 for op in profile.ops.values())


def work_of(webgpu, record):
    """By op: calls, FLOPs, bytes and kernels of what ``record`` records."""
    with webgpu.record() as program:
        record()
    with webgpu.profile() as profile:
        program.run()
    return {name: (op.calls, op.flops, op.nbytes, sorted(op.kernels)) for name, op in profile.ops.items()}


def test_an_op_that_waited_for_the_next_one_is_counted_as_itself(webgpu):
    """A norm is recorded late, since a linear might do its work too; no other op is told its time and bytes."""
    x, gain, normed = webgpu.upload(np.ones((3, 64))), webgpu.upload(np.ones(64)), webgpu.empty((3, 64))
    other = webgpu.empty((64,))
    expected = {
        "rms_norm_quant": (1, 0, 4 * 64 * (3 + 1 + 3), ["rms_norm_quant"]),
        "zero": (1, 0, 4 * 64, ["zero"]),
    }

    def norm():
        webgpu.rms_norm_quant(x, gain, 1e-5, normed, None, None)

    assert work_of(webgpu, lambda: (norm(), webgpu.zero(other))) == expected
    assert work_of(webgpu, lambda: (webgpu.zero(other), norm())) == expected


def test_the_work_of_an_op_that_another_one_does_is_counted_there(webgpu, monkeypatch):
    """The attention of a single row rotates its query too, where there is a GPU."""
    monkeypatch.setattr(few_rows_attention, "attention_shape", lambda *_, **__: AttentionShape(64, 4, 4, 1))
    heads = (4, 2, 16)
    rows = Rows(
        *(webgpu.upload(np.array(v), "i32") for v in ([0], [5], [0], [0, 1], [0])),
        webgpu.upload(np.ones(1)),
        block_tables=webgpu.upload(np.zeros((1, 1)), "i32"),
    )
    qkv, table = webgpu.upload(np.ones((1, 128))), webgpu.upload(rope_table(64, 16, 10000.0))
    k, v = webgpu.empty((1, 2, 32, 16), "f16"), webgpu.empty((1, 2, 32, 16), "f16")
    q, o, other = webgpu.empty((1, 64)), webgpu.empty((1, 64)), webgpu.empty((64,))

    def record(between):
        webgpu.rope_cache(qkv, table, rows, q, k, v, *heads)
        if between:
            webgpu.zero(other)
        webgpu.paged_attention(q, k, v, rows, o, *heads)

    apart = work_of(webgpu, lambda: record(True))
    together = work_of(webgpu, lambda: record(False))
    assert set(apart) == {"rope_cache", "zero", "paged_attention"}
    assert set(together) == {"paged_attention"}
    for what in (1, 2):
        assert together["paged_attention"][what] == apart["rope_cache"][what] + apart["paged_attention"][what] > 0


def test_outside_of_a_profile_nothing_is_timed(webgpu, recorded):
    with webgpu.profile() as profile:
        pass
    recorded[0].run()
    assert not profile.ops


def test_more_dispatches_than_a_set_of_queries_holds(webgpu):
    x = webgpu.upload(np.ones(4))
    with webgpu.record() as program:
        for _ in range(2050):
            webgpu.zero(x)
    with webgpu.profile() as profile:
        program.run()
    assert profile.ops["zero"].kernels["zero"].calls == 2050


def test_a_profile_leaves_no_memory_behind(webgpu):
    held = webgpu.stats.bytes_allocated
    with webgpu.profile(), pytest.raises(DeviceError, match="already"), webgpu.profile():
        pass
    assert webgpu.stats.bytes_allocated == held


def test_the_table_has_rates_where_they_are_known():
    profile = Profile()
    profile.add("linear", "gemm", 0.5)
    profile.add("linear", "lora", 0.25)
    profile.add("zero", "zero", 0.25, calls=2)
    op = profile.ops["linear"]
    op.calls, op.flops, op.nbytes = 1, 3e12, 1.5e9
    assert profile.rows() == [
        ("linear", "1", "750.000", "75.0", "750000.0", "2.0", "4000.0"),
        ("  gemm", "1", "500.000", "50.0", "500000.0", "", ""),
        ("  lora", "1", "250.000", "25.0", "250000.0", "", ""),
        ("zero", "2", "250.000", "25.0", "125000.0", "", ""),
        ("all", "4", "1000.000", "100.0", "250000.0", "", ""),
    ]
    assert len({len(line) for line in profile.table().splitlines()}) == 1
    op.exact = False
    assert profile.rows()[0][5:] == ("", "")


def test_a_device_that_cannot_tell_says_so():
    with pytest.raises(DeviceError, match="no profile"), NumpyBackend().profile():
        pass
