"""Ternary words and tables: the layout, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.webgpu.weights import pack_codes
from tritune.errors import DeviceError


@pytest.mark.parametrize("columns", [4, 16, 20, 100])
def test_layout_of_the_words(rng, columns):
    codes = rng.integers(-1, 2, (3, columns)).astype(np.int8)
    words = pack_codes(codes)
    assert words.dtype == np.uint32 and words.shape == (3, -(-columns // 16))
    for k in range(words.shape[1] * 16):
        code = (words[:, k // 16] >> (8 * (k % 4) + 2 * (k // 4 % 4))) & 3
        np.testing.assert_array_equal(code.astype(int) - 1, codes[:, k] if k < columns else 0)


def test_sizes_and_parts(webgpu, rng):
    parts = [(rng.integers(-1, 2, (n, 20)).astype(np.int8), s) for n, s in ((8, 0.5), (4, 2.0))]
    weight = webgpu.pack_ternary(parts)
    assert (weight.out_features, weight.in_features, weight.parts) == (12, 20, (8, 4))
    assert weight.nbytes == 12 * 2 * 4 + 12 * 4


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ([], "no parts"),
        ([np.zeros((4, 6), np.int8)], "6 columns"),
        ([np.zeros((4, 8), np.int16)], "int16"),
        ([np.full((4, 8), 2, np.int8)], "values from 2 to 2"),
        ([np.zeros((4, 8), np.int8), np.zeros((4, 12), np.int8)], r"expected int8 \[n, 8\]"),
        ([np.zeros((4, 1 << 18), np.int8)], "262144 columns"),
        ([np.zeros((4, 8), np.int8)] * 5, "5 parts"),
    ],
)
def test_what_is_no_ternary_matrix_is_refused(webgpu, codes, words):
    with pytest.raises(DeviceError, match=words):
        webgpu.pack_ternary([(array, 1.0) for array in codes])


@pytest.mark.parametrize(
    ("array", "dtype", "words"),
    [
        (np.zeros((4, 6), np.float32), "f32", "multiple of 4"),
        (np.zeros(4, np.float32), "f32", "multiple of 4"),
        (np.zeros((4, 8), np.int8), "i8", "found i8"),
    ],
)
def test_what_is_no_table_is_refused(webgpu, array, dtype, words):
    with pytest.raises(DeviceError, match=words):
        webgpu.table(array, dtype)


def test_a_row_beyond_the_binding_limit_is_refused(opened):
    with pytest.raises(DeviceError, match="a row of a table"):
        opened(max_binding_bytes=256).table(np.zeros((4, 128), np.float32), "f32")
