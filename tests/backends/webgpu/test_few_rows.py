"""Ops of few rows recorded one after the other take fewer dispatches, and leave in every buffer what each op leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from linear_cases import Case, forward
from tritune.backends.base import LoRA, Rows
from tritune.backends.numpy import NumpyBackend
from tritune.backends.webgpu import few_rows, few_rows_attention
from tritune.backends.webgpu.few_rows_attention import attention_shape
from tritune.ops.linear import lora_up, ternary_product
from tritune.ops.rope import rope_table

EPS = 1e-5
HEADS, KV_HEADS = 10, 2  # five query heads a key/value head: more than share one workgroup's loads


def close(found, expected, tolerance=2e-5):
    scale = float(np.sqrt(np.mean(np.square(np.asarray(expected, np.float64)))))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


class Chain:
    """rope_cache, paged_attention, the norm of its output and a linear with adapters, for T rows."""

    def __init__(self, rng, positions, sequence, sub_norm=True, rank=5, pool=3, head_dim=8, block_size=16):
        self.head_dim, self.width = head_dim, HEADS * head_dim
        self.positions, self.sequence = np.array(positions), np.array(sequence)
        tokens = len(positions)
        real = self.sequence[self.positions >= 0]
        self.q_start = np.concatenate([[0], np.cumsum(np.bincount(real, minlength=1 + max(sequence)))])
        self.case = Case(rng, tokens, self.width, (12, 8), rank=rank, pool=pool)
        self.case.slot = np.arange(1, tokens + 1) % (pool + 1)
        self.qkv = rng.normal(size=(tokens, (HEADS + 2 * KV_HEADS) * self.head_dim))
        self.gain = rng.uniform(0.5, 2, self.width) if sub_norm else None
        blocks = 1 + max(0, *positions) // block_size
        self.tables = rng.permutation((1 + max(sequence)) * blocks).reshape(-1, blocks)
        self.caches = rng.normal(size=(2, self.tables.size, KV_HEADS, block_size, self.head_dim)).astype(np.float16)

    def run(self, backend, record, apart=False):
        """All buffers after the chain, and the number of dispatches of the recorded program."""
        case, tokens = self.case, len(self.positions)
        rows = Rows(
            tokens=backend.upload(np.zeros(tokens), "i32"),
            positions=backend.upload(self.positions, "i32"),
            sequence=backend.upload(self.sequence, "i32"),
            q_start=backend.upload(self.q_start, "i32"),
            slot=backend.upload(case.slot, "i32"),
            multiplier=backend.upload(case.multiplier),
            block_tables=backend.upload(self.tables, "i32"),
        )
        qkv, table = backend.upload(self.qkv), backend.upload(rope_table(512, self.head_dim, 10000.0))
        k_cache, v_cache = (backend.upload(cache, "f16") for cache in self.caches)
        if apart:
            rows = replace(rows, q_start=backend.upload(self.q_start, "i32"))
        q, o, y = backend.empty((tokens, self.width)), backend.empty((tokens, self.width)), backend.upload(case.y)
        gain = None if self.gain is None else backend.upload(self.gain)
        normed = None if gain is None else backend.empty((tokens, self.width))
        codes, scales = backend.empty((tokens, self.width), "i8"), backend.empty((tokens,))
        weight, lora = case.weight(backend), case.lora(backend)
        shape = (HEADS, KV_HEADS, self.head_dim)

        def ops():
            backend.rope_cache(qkv, table, rows, q, k_cache, v_cache, *shape)
            backend.paged_attention(q, k_cache, v_cache, rows, o, *shape)
            backend.rms_norm_quant(o, gain, EPS, normed, codes, scales)
            x = o if normed is None else normed
            backend.linear(x, codes, scales, weight, y, rows, accumulate=True, lora=lora)

        count = None
        if record:
            with backend.record() as program:
                ops()
            count = len(program.dispatches)
            program.run()
        else:
            ops()
        buffers = {"q": q, "o": o, "codes": codes, "scales": scales, "down": lora.down, "y": y}
        buffers |= {"k_cache": k_cache, "v_cache": v_cache}
        if normed is not None:
            buffers["normed"] = normed
        return {name: np.asarray(backend.read(buffer)) for name, buffer in buffers.items()}, count

    def check(self, found):
        """Hold what a backend computed to the definitions."""
        expected, _ = self.run(NumpyBackend(), record=False)
        real = self.positions >= 0
        for name in ("k_cache", "v_cache"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-3)
        for name in ("q", "o", "normed", "scales", "down"):
            if name in expected:
                close(found[name][real], expected[name][real], 1e-3)  # keys and values were rounded to f16
        assert np.abs(found["codes"].astype(int) - expected["codes"]).max() <= 1
        case, codes = self.case, found["codes"]
        weight = np.concatenate([codes for codes, _ in case.parts]).astype(np.float64)
        row_scale = np.repeat([scale for _, scale in case.parts], [len(codes) for codes, _ in case.parts])
        sizes = tuple(len(codes) for codes, _ in case.parts)
        y = case.y + ternary_product(found["o"], codes, found["scales"].astype(np.float64), weight, row_scale)
        y += lora_up(found["down"].astype(np.float64), case.b, case.scale, case.slot, case.multiplier, sizes)
        close(found["y"], y)


@pytest.fixture(params=[(True, None), (True, 3), (False, 3)], ids=["", "splits", "splits, no subgroups"])
def backend(request, opened):
    subgroups, splits = request.param
    return opened(subgroups=subgroups, attention_splits=splits)


@pytest.mark.parametrize("sub_norm", [True, False])
@pytest.mark.parametrize("position", [0, 5, 15, 16, 200])
def test_one_row(backend, rng, position, sub_norm):
    chain = Chain(rng, [position], [0], sub_norm, pool=1 + position % 2)
    if position > 5:
        chain.case.round_adapters()
    found, count = chain.run(backend, record=True)
    # Rotation and attention; norm and LoRA's first factor; product and LoRA's second factor.
    assert count == 3 + backend.device.info.software
    chain.check(found)


@pytest.mark.parametrize(
    ("head_dim", "positions", "block_size"),
    [(128, [300], 32), (40, [32], 16), (32, [511], 32), (16, [70, 300, 5], 6), (32, [90, 4, 411], 5)],
)
def test_any_split_of_attention(backend, rng, monkeypatch, head_dim, positions, block_size):
    """The shapes of work that GPUs get, on whatever device there is."""
    shape = attention_shape(len(positions), 32768, software=False)
    monkeypatch.setattr(few_rows_attention, "attention_shape", lambda *_, **__: shape)
    chain = Chain(rng, positions, range(len(positions)), head_dim=head_dim, block_size=block_size)
    found, _ = chain.run(backend, record=True)
    chain.check(found)
    # Own keys and values count as the cache holds them: a thousandth away they would show here.
    expected, _ = chain.run(NumpyBackend(), record=False)
    assert np.linalg.norm(found["o"] - expected["o"]) < 1e-5 * np.linalg.norm(expected["o"])


def test_scores_are_added_up_within_subgroups(opened, rng):
    """Where the smallest subgroup that the device may have holds all threads of a key."""
    device = opened()
    if not device.device.subgroups:
        pytest.skip("the adapter has no subgroups")

    def shuffles(backend, head_dim):
        chain = Chain(rng, [40], [0], head_dim=head_dim)
        found, _ = chain.run(backend, record=True)
        chain.check(found)
        program = backend._preparer.shaders._pipelines
        return any("subgroupShuffleXor" in source for source, _ in program if "block_tables" in source)

    assert not shuffles(opened(subgroups=False), 32)
    device.device.smallest_subgroup = 2
    assert not shuffles(device, 32)
    device.device.smallest_subgroup = 4
    assert shuffles(device, 32)


def test_attention_takes_little_workgroup_memory_where_there_is_little():
    assert attention_shape(1, 32768, software=False).keys == 8
    assert attention_shape(1, 16384, software=False).keys == 4


def test_a_spare_row(backend, rng):
    chain = Chain(rng, [-1], [0])
    found, _ = chain.run(backend, record=True)
    for name, before in zip(("k_cache", "v_cache"), chain.caches, strict=True):
        np.testing.assert_array_equal(found[name], before)
    assert not found["o"].any()


@pytest.mark.parametrize(
    ("positions", "sequence"),
    [
        ([7, 8], [0, 0]),
        ([100, 0, 1, 2, 63], [0, 1, 1, 1, 2]),
        (list(range(90, 106)), list(range(16))),
        ([3, -1], [0, 0]),
    ],
)
def test_rows_of_several_sequences(backend, rng, monkeypatch, positions, sequence):
    monkeypatch.setattr(few_rows, "gemv_shape", lambda *_, **__: few_rows.GemvShape(64, 16, 1, 1, rows=4))
    chain = Chain(rng, positions, sequence)
    found, count = chain.run(backend, record=True)
    assert count == 3 + backend.device.info.software  # where rotation is a dispatch of its own
    chain.check(found)


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize(
    ("positions", "sequence"),
    [
        (list(range(16)), [0] * 16),
        ([31, 32, 33, 34, 200, 0, 1, 2, -1, -1], [0, 0, 0, 0, 1, 2, 2, 2, 0, 0]),
        ([*range(70, 84), 9], [0] * 14 + [1]),
    ],
)
def test_rows_of_a_prompt_see_each_other(backend, rng, monkeypatch, positions, sequence, software):
    """Their keys and values are not in the cache yet when attention begins, for one dispatch does both."""
    shape = replace(attention_shape(3, 32768, software=software), threads=32, rope=True)
    monkeypatch.setattr(few_rows_attention, "attention_shape", lambda *_, **__: shape)
    monkeypatch.setattr(few_rows, "gemv_shape", lambda *_, **__: few_rows.GemvShape(64, 16, 1, 1, rows=4))
    chain = Chain(rng, positions, sequence, head_dim=16)
    found, count = chain.run(backend, record=True)
    assert count == 3
    chain.check(found)


def test_rows_described_far_apart(backend, rng, monkeypatch):
    """Attention needs more buffers than a kernel may bind unless positions, sequences and their starts lie together."""
    shape = attention_shape(3, 32768, software=False)
    monkeypatch.setattr(few_rows_attention, "attention_shape", lambda *_, **__: shape)
    monkeypatch.setattr(few_rows, "gemv_shape", lambda *_, **__: few_rows.GemvShape(64, 16, 1, 1, rows=4))
    chain = Chain(rng, [20, 21, 7], [0, 0, 1])
    for apart in (False, True):
        found, count = chain.run(backend, record=True, apart=apart)
        assert count == 3 + apart
        chain.check(found)


def test_each_op_alone_leaves_the_same(backend, rng):
    chain = Chain(rng, [150], [0])
    recorded, _ = chain.run(backend, record=True)
    alone, _ = chain.run(backend, record=False)
    for name, values in alone.items():
        if name == "codes":
            assert np.abs(recorded[name].astype(int) - values).max() <= 1
        elif name != "y":
            close(recorded[name], values, 1e-3)  # where an ulp decides how keys and values round to f16


def test_a_norm_of_something_else_is_left_alone(backend, rng):
    case = Case(rng, 2, 64, (8,), rank=3, pool=2)
    x, other = rng.normal(size=(2, 2, 64))
    found = {}
    for device in (backend, NumpyBackend()):
        normed, y = device.empty((2, 64)), device.empty((2, 8))
        lora, rows = case.lora(device), case.rows(device)
        given, source = device.upload(x), device.upload(other)
        codes, scales = device.upload(case.codes, "i8"), device.upload(case.scales)
        with device.record() as program:
            device.rms_norm_quant(source, device.upload(np.ones(64)), EPS, normed, None, None)
            device.linear(given, codes, scales, case.weight(device), y, rows, lora=lora)
        program.run()
        found[device.name] = [np.asarray(device.read(b)) for b in (normed, lora.down, y)]
    for ours, definition in zip(found["webgpu"], found["numpy"], strict=True):
        close(ours, definition)


def test_slots_and_multipliers_far_apart(backend, rng):
    """The correction needs more buffers than a kernel may bind unless these two lie together."""
    case = Case(rng, 3, 20, (8, 4), rank=3, pool=2)
    case.slot = np.array([1, 0, 2])
    found = {}
    for device in (backend, NumpyBackend()):
        rows = case.rows(device)
        a, b, scale, down = (device.upload(v) for v in (case.a, case.b, case.scale, np.ones((3, case.a.shape[1]))))
        y = device.upload(case.y)
        apart = Rows(
            rows.tokens, rows.positions, rows.sequence, rows.q_start, rows.slot, device.upload(case.multiplier)
        )
        given = device.upload(case.x), device.upload(case.codes, "i8"), device.upload(case.scales)
        device.linear(*given, case.weight(device), y, apart, lora=LoRA(a, b, scale, case.rank, down))
        found[device.name] = np.asarray(device.read(y))
    close(found["webgpu"], found["numpy"])


@pytest.mark.parametrize(
    ("tokens", "in_features", "shape", "rank"),
    [
        (1, 640, (128, 8, 1, 5), 17),
        (1, 192, (128, 16, 2, 2), 8),
        (2, 64, (64, 32, 1, 3), 40),
        (3, 100, (64, 8, 2, 1), 17),
        (5, 64, (128, 8, 4, 1, 4), 16),
        (2, 64, (64, 8, 8, 1), 12),
        (2, 64, (64, 4, 2, 1), 72),
    ],
)
def test_any_split_of_the_product(webgpu, rng, monkeypatch, in_features, shape, tokens, rank):
    """The shapes of work that large GPUs get, on whatever device there is."""
    monkeypatch.setattr(few_rows, "gemv_shape", lambda *_, **__: few_rows.GemvShape(*shape))
    case = Case(rng, tokens, in_features, (36, 8, 4), rank=rank, pool=3)
    reference = NumpyBackend()
    for lora in (True, False):
        found = forward(case, webgpu, codes=True, accumulate=True, pool=lora, rate=0)
        expected = forward(case, reference, codes=True, accumulate=True, pool=lora, rate=0)
        for name, buffer in found.items():
            close(np.asarray(webgpu.read(buffer)), reference.read(expected[name]))
