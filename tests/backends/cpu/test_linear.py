"""The ternary linear on the CPU: packing, exact sums across blocks of memory, any number of threads, f16 adapters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linear_cases import Case, dropout
from tritune.backends.base import LoRAGrad
from tritune.backends.cpu.loading import native_problem, supported_isas
from tritune.backends.cpu.ternary import unpack
from tritune.backends.numpy import NumpyBackend
from tritune.errors import DeviceError

ISAS = [] if native_problem() else supported_isas()


def passes(backend, case, *, rate, codes=True):
    """Everything that linear and linear_backward write, as bytes."""
    x, y, dx = backend.upload(case.x), backend.upload(case.y), backend.empty(case.x.shape)
    lora, grad, rows, weight = case.lora(backend), case.grad(backend), case.rows(backend), case.weight(backend)
    drop = dropout(backend, rate) if rate else None
    quantised = backend.upload(case.codes, "i8") if codes else None
    scales = backend.upload(case.scales) if codes else None
    backend.linear(x, quantised, scales, weight, y, rows, accumulate=True, lora=lora, dropout=drop)
    backend.linear_backward(backend.upload(case.dy), x, weight, rows, dx=dx, lora=lora, grad=grad, dropout=drop)
    written = (y, lora.down, dx, lora.down_grad, grad.a, grad.b)
    return [backend.read(buffer).tobytes() for buffer in written]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    columns=st.integers(1, 30),
    threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
def test_packing_keeps_every_code(cpu, rows, columns, threads, seed):
    rng, backend = np.random.default_rng(seed), cpu(threads)
    parts = [(rng.integers(-1, 2, (n, 4 * columns)).astype(np.int8), 1.0) for n in rows]
    weight = backend.pack_ternary(parts)
    np.testing.assert_array_equal(unpack(backend, backend._pool, weight), np.concatenate([codes for codes, _ in parts]))


def test_packed_weights_take_two_bits_and_a_few_percent(cpu):
    weight = cpu().pack_ternary([(np.zeros((512, 2560), np.int8), 1.0)])
    assert weight.nbytes <= 512 * 2560 / 4 * 1.02


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize(
    ("tokens", "in_features", "parts"), [(1, 100, (68, 20, 4)), (7, 36, (132,)), (90, 68, (64, 36))]
)
def test_results_do_not_depend_on_the_number_of_threads(cpu, tokens, in_features, parts, rate):
    case = Case(np.random.default_rng(3), tokens, in_features, parts, rank=6, pool=1)
    alone = passes(cpu(1), case, rate=rate)
    for threads in (2, 3, 7):
        assert passes(cpu(threads), case, rate=rate) == alone


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 2, 5, 13, 40])
def test_sums_over_many_blocks_are_exact(cpu, isa, tokens):
    # 5204 columns are three blocks of L1; runs of one sign are what a 16-bit sum would overflow on.
    rng = np.random.default_rng(tokens)
    weight = rng.integers(-1, 2, (36, 5204)).astype(np.int8)
    weight[0], weight[1], weight[2, ::2], weight[2, 1::2] = 1, -1, 1, -1
    codes = rng.integers(-128, 128, (tokens, 5204)).astype(np.int8)
    codes[0], codes[-1, 2000:] = -128, 127
    backend, case = cpu(2, isa), Case(rng, tokens, 4, (4,), rank=1, pool=1)
    y = backend.empty((tokens, 36))
    scales, packed = backend.upload(np.ones(tokens)), backend.pack_ternary([(weight, 1.0)])
    unread = backend.empty((tokens, 5204))
    backend.linear(unread, backend.upload(codes, "i8"), scales, packed, y, case.rows(backend))
    np.testing.assert_array_equal(backend.read(y), codes.astype(np.int64) @ weight.T.astype(np.int64))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("tokens", "in_features", "parts"), [(400, 20, (36,)), (30, 36, (2600, 84)), (5, 2692, (20,))])
def test_shapes_of_several_blocks_equal_the_definition(cpu, isa, tokens, in_features, parts):
    case = Case(np.random.default_rng(1), tokens, in_features, parts, rank=4, pool=1)
    expected = passes(NumpyBackend(np.float64), case, rate=0.2, codes=False)
    found = passes(cpu(2, isa), case, rate=0.2, codes=False)
    for i in (0, 1, 2, 4, 5):  # down_grad is scratch
        got, want = np.frombuffer(found[i], np.float32), np.frombuffer(expected[i], np.float64)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.sqrt(np.mean(want**2)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rank", [1, 3, 4, 8, 16, 20, 32])
@pytest.mark.parametrize("tokens", [1, 3, 6, 70])
def test_f16_adapters_give_what_the_same_numbers_in_f32_give(cpu, isa, rank, tokens):
    backend, case = cpu(2, isa), Case(np.random.default_rng(rank), tokens, 44, (36, 20), rank=rank, pool=2)
    case.a, case.b = case.a.astype(np.float16), case.b.astype(np.float16)
    case.a[0, 0, :4] = [6e-8, -6e-5, 65504, 0]  # a subnormal half, the smallest and largest numbers
    outputs = []
    for dtype in ("f32", "f16"):
        lora = replace(case.lora(backend), a=backend.upload(case.a, dtype), b=backend.upload(case.b, dtype))
        y = backend.upload(case.y)
        codes, scales = backend.upload(case.codes, "i8"), backend.upload(case.scales)
        backend.linear(backend.upload(case.x), codes, scales, case.weight(backend), y, case.rows(backend), lora=lora)
        outputs.append((backend.read(y), backend.read(lora.down)))
    for found, expected in zip(outputs[1], outputs[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.sqrt(np.mean(expected**2)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1e-30, 1e-10, 1e10, 1e30])
def test_gradients_of_any_size(cpu, isa, size):
    case = Case(np.random.default_rng(5), 9, 36, (20, 8), rank=2, pool=1)
    case.dy[:4] *= size  # a row's size is its own
    exact = np.concatenate([codes.astype(float) * np.float32(scale) for codes, scale in case.parts])
    found = gradient(cpu(1, isa), case)
    for row, want in zip(found, np.float32(case.dy).astype(float) @ exact, strict=True):
        np.testing.assert_allclose(row, want, rtol=2e-5, atol=2e-5 * np.sqrt(np.mean(want**2)))


@pytest.mark.parametrize("size", [1e-37, 1e-42, 1e-45])
def test_the_smallest_gradients_stay_finite(cpu, size):
    case = Case(np.random.default_rng(5), 9, 36, (20, 8), rank=2, pool=1)
    case.dy[:] = size
    assert np.abs(gradient(cpu(), case)).max() < 100 * size


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_seen(cpu, isa, wrong):
    case = Case(np.random.default_rng(5), 9, 36, (20, 8), rank=2, pool=1)
    healthy = gradient(cpu(1, isa), case)
    case.dy[4, 17] = wrong
    found = gradient(cpu(1, isa), case)
    assert not np.isfinite(found[4]).any()
    np.testing.assert_array_equal(np.delete(found, 4, 0), np.delete(healthy, 4, 0))


def test_zero_gradients_are_zero(cpu):
    case = Case(np.random.default_rng(5), 3, 36, (20, 8), rank=2, pool=1)
    case.dy[:] = 0
    assert not gradient(cpu(), case).any()


def gradient(backend, case):
    dx = backend.upload(np.full(case.x.shape, 7.0))
    backend.linear_backward(
        backend.upload(case.dy), backend.upload(case.x), case.weight(backend), case.rows(backend), dx=dx
    )
    return backend.read(dx)


def test_no_tokens(cpu):
    case = Case(np.random.default_rng(5), 1, 36, (20,), rank=2, pool=1)
    backend, rows = cpu(), case.rows(cpu())
    x, y = backend.empty((0, 36)), backend.empty((0, 20))
    rows = replace(rows, slot=backend.empty((0,), "i32"), multiplier=backend.empty((0,)))
    backend.linear(x, None, None, case.weight(backend), y, rows)
    backend.linear_backward(y, x, case.weight(backend), rows, dx=x)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.full((4, 8), 2, np.int8), "values from 2 to 2"),
        (np.full((4, 8), -2, np.int8), "values from -2 to -2"),
        (np.zeros((4, 6), np.int8), "6 columns"),
        (np.zeros((4, 0), np.int8), "0 columns"),
        (np.zeros((4, 8), np.int32), "int32"),
        (np.zeros((4,), np.int8), "int8"),
        (np.zeros((4, (1 << 17) + 4), np.int8), "columns"),
    ],
)
def test_what_is_not_a_ternary_matrix_is_refused(cpu, codes, message):
    with pytest.raises(DeviceError, match=message):
        cpu().pack_ternary([(codes, 1.0)])


def test_parts_must_have_the_same_columns(cpu):
    with pytest.raises(DeviceError, match=r"expected int8 \[n, 8\]"):
        cpu().pack_ternary([(np.zeros((4, 8), np.int8), 1.0), (np.zeros((4, 12), np.int8), 1.0)])
    with pytest.raises(DeviceError, match="no parts"):
        cpu().pack_ternary([])


def test_wrong_calls_are_refused(cpu):
    case = Case(np.random.default_rng(5), 3, 36, (20, 8), rank=2, pool=2)
    backend = cpu()
    x, y, dy = backend.upload(case.x), backend.upload(case.y), backend.upload(case.dy)
    codes, scales, rows = backend.upload(case.codes, "i8"), backend.upload(case.scales), case.rows(backend)
    weight, lora = case.weight(backend), case.lora(backend)
    half = replace(lora, a=backend.upload(case.a, "f16"), b=backend.upload(case.b, "f16"))
    refused = [
        ("another backend", lambda: backend.linear(x, codes, scales, case.weight(NumpyBackend()), y, rows)),
        ("without their scales", lambda: backend.linear(x, codes, None, weight, y, rows)),
        ("y is f32", lambda: backend.linear(x, codes, scales, weight, x, rows)),
        ("codes is f32", lambda: backend.linear(x, x, scales, weight, y, rows)),
        ("LoRA.b", lambda: backend.linear(x, codes, scales, weight, y, rows, lora=replace(half, b=lora.b))),
        ("rank is at least 1", lambda: backend.linear(x, codes, scales, weight, y, rows, lora=replace(lora, rank=0))),
        ("dx is f32", lambda: backend.linear_backward(dy, x, weight, rows, dx=y)),
        (
            "down_grad is missing",
            lambda: backend.linear_backward(dy, x, weight, rows, dx=x, lora=replace(lora, down_grad=None)),
        ),
        ("f32, found f16", lambda: backend.linear_backward(dy, x, weight, rows, dx=x, lora=half)),
        (
            "one adapter",
            lambda: backend.linear_backward(dy, x, weight, rows, dx=x, lora=lora, grad=LoRAGrad(lora.a, lora.b)),
        ),
    ]
    for message, call in refused:
        with pytest.raises(DeviceError, match=message):
            call()
