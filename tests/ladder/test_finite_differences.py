"""The gradient of every op equals the slope of its forward, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tritune.backends.base import Backend, Buffer, Dropout, LoRA, LoRAGrad, Rows
from tritune.ops.rope import rope_table

Values = NDArray[np.float64]
STEP = 1e-6
TOLERANCE = 1e-6  # relative to the largest slope; central differences of float64 reach about 1e-9
LENGTHS = (4, 1, 3)
SPARE = 2
ROWS = sum(LENGTHS) + SPARE


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def slopes(f: Callable[[], float], at: Values) -> Values:
    """Central differences of f with respect to each element of an array that f reads."""
    flat, out = at.reshape(-1), np.zeros(at.size)
    for i in range(at.size):
        value = flat[i]
        flat[i] = value + STEP
        above = f()
        flat[i] = value - STEP
        out[i] = (above - f()) / (2 * STEP)
        flat[i] = value
    return out.reshape(at.shape)


def check(f: Callable[[], float], gradients: Mapping[str, tuple[Values, Buffer]]) -> None:
    """gradients: by name, an input of f and the buffer that holds what is claimed to be its gradient."""
    for name, (at, claimed) in gradients.items():
        found, wanted = claimed.array, slopes(f, at)  # type: ignore[attr-defined]
        assert np.abs(wanted).max() > 1e-3, name
        np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max(), err_msg=name)


def array(buffer: Buffer) -> Values:
    """The memory behind a buffer of the NumPy backend."""
    return buffer.array  # type: ignore[attr-defined]


def packed_rows(backend: Backend) -> Rows:
    """Three sequences and two spare rows; one row without adapter."""
    positions = np.concatenate([*(np.arange(n) for n in LENGTHS), np.full(SPARE, -1)])
    starts = np.cumsum([0, *LENGTHS])
    sequence = np.concatenate([np.repeat(np.arange(len(LENGTHS)), LENGTHS), np.zeros(SPARE)])
    slot = np.ones(ROWS)
    slot[2] = 0
    multiplier = np.linspace(0.5, 1.5, ROWS)
    ints = [backend.upload(values.astype(np.int32), "i32") for values in (positions, sequence, starts, slot)]
    return Rows(backend.empty((ROWS,), "i32"), *ints, backend.upload(multiplier))


@pytest.mark.parametrize("accumulate", [False, True])
def test_rms_norm(accumulate: bool, reference: Backend, rng: np.random.Generator) -> None:
    x, gain, dy, before = (reference.upload(rng.normal(size=shape)) for shape in ((3, 8), (8,), (3, 8), (3, 8)))
    y = reference.empty((3, 8))
    start = array(before).copy()

    def f() -> float:
        reference.rms_norm_quant(x, gain, 1e-2, y, None, None)
        return float(np.sum(array(y) * array(dy)))

    reference.rms_norm_backward(x, gain, 1e-2, dy, before, accumulate)
    if accumulate:
        array(before)[...] -= start
    check(f, {"x": (array(x), before)})


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", ["relu2", "silu"])
def test_glu(activation: str, norm: bool, reference: Backend, rng: np.random.Generator) -> None:
    gate_up, dy = reference.upload(rng.normal(size=(3, 16))), reference.upload(rng.normal(size=(3, 8)))
    gain = reference.upload(rng.normal(size=8)) if norm else None
    z, grad = reference.empty((3, 8)), reference.empty((3, 16))

    def f() -> float:
        reference.glu_norm_quant(gate_up, activation, gain, 1e-2, z, None, None)
        return float(np.sum(array(z) * array(dy)))

    reference.glu_backward(gate_up, activation, gain, 1e-2, dy, grad)
    check(f, {"gate and up": (array(gate_up), grad)})


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_linear(rate: float, reference: Backend, rng: np.random.Generator) -> None:
    """Three parts with a factor each, rows with and without adapter, spare rows."""
    parts, inputs, rank = (8, 4, 4), 8, 3
    rows = packed_rows(reference)
    outputs = sum(parts)
    weight = reference.pack_ternary([(rng.integers(-1, 2, (n, inputs), np.int8), 0.3 + n / 10) for n in parts])
    x, dy, a, b = (
        reference.upload(rng.normal(size=shape))
        for shape in ((ROWS, inputs), (ROWS, outputs), (1, len(parts) * rank, inputs), (1, outputs, rank))
    )
    down, down_grad = (reference.empty((ROWS, len(parts) * rank)) for _ in range(2))
    lora = LoRA(a, b, reference.upload(np.array([[2.0, 0.7, -1.0]])), rank, down, down_grad)
    dropout = Dropout(rate, 5, reference.upload(np.array([7, 1], np.uint32), "u32")) if rate else None
    y, dx, da, db = (reference.empty(buffer.shape) for buffer in (dy, x, a, b))

    def f() -> float:
        reference.linear(x, None, None, weight, y, rows, lora=lora, dropout=dropout)
        return float(np.sum(array(y) * array(dy)))

    f()
    for _ in range(2):  # dA and dB are added up, dx is not
        reference.linear_backward(dy, x, weight, rows, dx=dx, lora=lora, grad=LoRAGrad(da, db), dropout=dropout)
    array(da)[...] /= 2
    array(db)[...] /= 2
    check(f, {"x": (array(x), dx), "A": (array(a), da), "B": (array(b), db)})


def test_linear_of_several_adapters(reference: Backend, rng: np.random.Generator) -> None:
    """dx where each row has an adapter of its own, or none."""
    rows = packed_rows(reference)
    array(rows.slot)[...] = np.arange(ROWS) % 3
    weight = reference.pack_ternary([(rng.integers(-1, 2, (4, 8), np.int8), 0.6)])
    x, dy, a, b = (reference.upload(rng.normal(size=s)) for s in ((ROWS, 8), (ROWS, 4), (2, 3, 8), (2, 4, 3)))
    down, down_grad = (reference.empty((ROWS, 3)) for _ in range(2))
    lora = LoRA(a, b, reference.upload(np.array([[2.0], [-0.5]])), 3, down, down_grad)
    y, dx = reference.empty((ROWS, 4)), reference.empty((ROWS, 8))

    def f() -> float:
        reference.linear(x, None, None, weight, y, rows, lora=lora)
        return float(np.sum(array(y) * array(dy)))

    f()
    reference.linear_backward(dy, x, weight, rows, dx=dx, lora=lora)
    check(f, {"x": (array(x), dx)})


def test_rope(reference: Backend, rng: np.random.Generator) -> None:
    shape, dims = (ROWS, 4 * 8), (2, 1, 8)
    rows, table = packed_rows(reference), reference.upload(rope_table(8, 8, 100.0))
    x, dy = rng.normal(size=shape), rng.normal(size=shape)
    y, dx = reference.empty(shape), reference.upload(dy)

    def f() -> float:
        reference.write(y, x)
        reference.rope(y, table, rows, *dims)
        return float(np.sum(array(y) * dy))

    reference.rope_backward(dx, table, rows, *dims)
    check(f, {"q, k and v": (x, dx)})


def test_causal_attention(reference: Backend, rng: np.random.Generator) -> None:
    heads, kv_heads, head_dim = dims = (4, 2, 4)
    rows = packed_rows(reference)
    qkv = reference.upload(rng.normal(size=(ROWS, (heads + 2 * kv_heads) * head_dim)))
    do = reference.upload(rng.normal(size=(ROWS, heads * head_dim)))
    o, dqkv = reference.empty(do.shape), reference.empty(qkv.shape)
    lse, delta = (reference.empty((ROWS, heads)) for _ in range(2))

    def f() -> float:
        reference.causal_attention(qkv, rows, o, lse, *dims)
        return float(np.sum(array(o) * array(do)))

    f()
    reference.causal_attention_backward(qkv, o, lse, do, rows, dqkv, *dims, delta)
    check(f, {"q, k and v": (array(qkv), dqkv)})
    for index, part in enumerate(np.split(array(dqkv), np.cumsum([heads, kv_heads])[:2] * head_dim, axis=1)):
        assert np.abs(part[: sum(LENGTHS)]).max() > 1e-2, index
        assert not part[sum(LENGTHS) :].any()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_logits_and_cross_entropy(dtype: Any, reference: Backend, rng: np.random.Generator) -> None:
    values = rng.normal(size=(11, 8)).astype(np.float32)
    table = reference.table(values if dtype == "f32" else (values.view(np.uint32) >> 16).astype(np.uint16), dtype)
    x, dx = reference.upload(rng.normal(size=(5, 8))), reference.empty((5, 8))
    targets = reference.upload(np.array([3, -1, 10, 0, 3], np.int32), "i32")
    coefficients = reference.upload(np.array([1.0, 1.0, 0.5, -2.0, 0.0]))
    logits, nll, totals = reference.empty((5, 11)), reference.empty((5,)), reference.empty((4,))

    def f() -> float:
        reference.zero(totals)
        reference.logits(x, table, logits)
        reference.cross_entropy(logits, targets, coefficients, nll, backward=False)
        reference.add_loss(nll, coefficients, totals)
        return float(array(totals)[0])

    f()
    reference.cross_entropy(logits, targets, coefficients, nll, backward=True)
    reference.logits_backward(logits, table, dx)
    check(f, {"x": (array(x), dx)})


def test_gather_and_scatter_are_adjoint(reference: Backend, rng: np.random.Generator) -> None:
    x, dy = reference.upload(rng.normal(size=(6, 4))), reference.upload(rng.normal(size=(4, 4)))
    index = reference.upload(np.array([4, -1, 0, 5], np.int32), "i32")
    y, dx = reference.empty((4, 4)), reference.upload(rng.normal(size=(6, 4)))

    def f() -> float:
        reference.gather_rows(x, index, y)
        return float(np.sum(array(y) * array(dy)))

    reference.scatter_rows(dy, index, dx)
    check(f, {"x": (array(x), dx)})
