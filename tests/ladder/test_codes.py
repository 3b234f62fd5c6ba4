"""Int8 codes on a device: within 1 of the definition, only at near-ties, in few elements; their products are exact."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tritune.backends.base import Backend, Rows
from tritune.backends.numpy import NumpyBackend

NEAR_TIE = 1e-3
SHARE = 1e-4
ROWS, WIDTH = 96, 2560
Floats = NDArray[np.float32]


def quantised(backend: Backend, op: str, x: Floats, gain: Floats | None) -> tuple[Floats, NDArray[np.int8], Floats]:
    """(what is rounded, codes, scales)."""
    width = x.shape[1] // (2 if "glu" in op else 1)
    source = backend.upload(x)
    weights = None if gain is None else backend.upload(gain)
    normed, codes, scales = backend.empty((ROWS, width)), backend.empty((ROWS, width), "i8"), backend.empty((ROWS,))
    if op == "rms_norm":
        backend.rms_norm_quant(source, weights, 1e-5, normed, codes, scales)
    else:
        backend.glu_norm_quant(source, op.split()[1], weights, 1e-5, normed, codes, scales)
    return backend.read(normed), backend.read(codes), backend.read(scales)  # type: ignore[return-value]


@pytest.mark.parametrize("gain", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize("op", ["rms_norm", "glu relu2", "glu silu"])
def test_codes(op: str, gain: bool, backend: Backend, reference: Backend) -> None:
    rng = np.random.default_rng(11)
    # Rows of very different sizes, and heavy tails as activations have them.
    x = rng.standard_t(4, size=(ROWS, WIDTH * (2 if "glu" in op else 1))) * np.logspace(-2, 2, ROWS)[:, None]
    weights = (1 + 0.2 * rng.normal(size=WIDTH)).astype(np.float32) if gain else None
    _, codes, scales = quantised(backend, op, x.astype(np.float32), weights)
    value, wanted, wanted_scales = quantised(reference, op, x.astype(np.float32), weights)
    np.testing.assert_allclose(scales, wanted_scales, rtol=5e-6)
    off = codes != wanted
    assert np.abs(codes.astype(int) - wanted).max() <= 1
    assert off.mean() <= SHARE
    exact = value * wanted_scales[:, None]
    assert np.abs(np.abs(exact - np.floor(exact)) - 0.5)[off].max(initial=0) <= NEAR_TIE
    assert len(np.unique(wanted)) > 200


@pytest.mark.parametrize("rows", [1, 3, 17, 65])
@pytest.mark.parametrize("inputs", [20, 2560, 6912])
def test_products_of_codes_are_exact(inputs: int, rows: int, backend: Backend) -> None:
    """Any sum of codes times ternary weights is an integer below 2^24, so it has only one right value."""
    rng = np.random.default_rng([inputs, rows])
    codes = rng.integers(-128, 128, (rows, inputs)).astype(np.int8)
    codes[0] = 127
    weight = rng.integers(-1, 2, (44, inputs)).astype(np.int8)
    weight[7] = 1
    weight[8] = -1
    handle = backend.pack_ternary([(weight[:28], 1.0), (weight[28:], 1.0)])
    y = backend.upload(np.full((rows, 44), 3.0))
    nobody = Rows(*(backend.empty((rows,), "i32") for _ in range(5)), backend.empty((rows,)))
    x, scales = backend.empty((rows, inputs)), backend.upload(np.ones(rows))
    wanted = codes.astype(np.int64) @ weight.T.astype(np.int64)
    backend.linear(x, backend.upload(codes, "i8"), scales, handle, y, nobody)
    np.testing.assert_array_equal(backend.read(y), wanted)
    backend.linear(x, backend.upload(codes, "i8"), scales, handle, y, nobody, accumulate=True)
    np.testing.assert_array_equal(backend.read(y), 2 * wanted)


def test_scales_multiply_exactly_once(backend: Backend) -> None:
    """Powers of two show where a scale is applied: y = (Σ q·w) / s · weight_scale, a scale for each part."""
    codes = np.arange(-8, 8, dtype=np.int8).reshape(2, 8)
    weight = np.eye(8, dtype=np.int8)
    handle = backend.pack_ternary([(weight[:4], 0.25), (weight[4:], 8.0)])
    y = backend.empty((2, 8))
    nobody = Rows(*(backend.empty((2,), "i32") for _ in range(5)), backend.empty((2,)))
    scales = backend.upload(np.array([2.0, 0.5]))
    backend.linear(backend.empty((2, 8)), backend.upload(codes, "i8"), scales, handle, y, nobody)
    wanted = codes / np.array([[2.0], [0.5]]) * np.repeat([0.25, 8.0], 4)
    np.testing.assert_array_equal(backend.read(y), wanted.astype(np.float32))


def test_ties_go_to_even() -> None:
    """The definition itself: halves are rounded to the even neighbour, on both sides of zero."""
    backend = NumpyBackend(np.float64)
    x = backend.upload(np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -126.5]]))
    codes, scales = backend.empty((1, 8), "i8"), backend.empty((1,))
    backend.rms_norm_quant(x, None, 0.0, None, codes, scales)
    assert backend.read(codes).tolist() == [[127, 0, 2, 2, 0, -2, -2, -126]]
