"""Packed ternary layouts: hand-made bytes, round trips, gguf-py as the reference, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from tiny_gguf import encode_i2_s
from tiny_models import pack_hf, random_codes
from tritune.errors import ModelFileError
from tritune.formats.packing import decode_i2_s, decode_tq1_0, decode_tq2_0, unpack_hf

TQ = {"TQ1_0": decode_tq1_0, "TQ2_0": decode_tq2_0}


def as_bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def quantise(values: NDArray[np.float32], kind: str) -> NDArray[np.uint8]:
    return quants.quantize(values, GGMLQuantizationType[kind]).reshape(-1)


def test_unpack_hf_of_the_documented_example() -> None:
    packed = np.array([[0b10100001, 0b00011000], [0b10010000, 0b00001010]], dtype=np.uint8)
    expected = [[0, -1], [-1, 1], [-1, 1], [-1, 1], [1, 0], [0, -1], [1, -1], [1, -1]]
    np.testing.assert_array_equal(unpack_hf(packed, "w"), expected)


@pytest.mark.parametrize("shape", [(4, 1), (12, 5), (20, 128)])
def test_unpack_hf_inverts_packing(shape: tuple[int, int]) -> None:
    codes = random_codes(np.random.default_rng(1), *shape)
    unpacked = unpack_hf(pack_hf(codes), "w")
    assert unpacked.dtype == np.int8
    np.testing.assert_array_equal(unpacked, codes)


@pytest.mark.parametrize("shift", [0, 2, 4, 6])
def test_unpack_hf_refuses_the_value_3(shift: int) -> None:
    packed = np.zeros((3, 4), dtype=np.uint8)
    packed[2, 1] = 3 << shift
    with pytest.raises(ModelFileError, match="tensor w: holds the 2-bit value 3"):
        unpack_hf(packed, "w")


def test_i2_s_of_bytes_made_by_hand() -> None:
    data = bytearray(32)
    data[5] = 0b10_01_00_10  # values 5, 37, 69, 101 of the block
    codes, scale = decode_i2_s(as_bytes(bytes(data) + struct.pack("<f", 0.25) + b"\xff" * 28), (2, 64), "w")
    expected = np.full(128, -1)
    expected[[5, 37, 69, 101]] = [1, 0, -1, 1]
    np.testing.assert_array_equal(codes, expected.reshape(2, 64))
    assert scale == 0.25


def test_i2_s_blocks_run_over_the_flattened_matrix() -> None:
    codes = random_codes(np.random.default_rng(2), 8, 48)  # a block is 2.67 rows
    decoded, scale = decode_i2_s(as_bytes(encode_i2_s(codes, 0.5)), (8, 48), "w")
    np.testing.assert_array_equal(decoded, codes)
    assert (decoded.dtype, scale) == (np.int8, 0.5)


@pytest.mark.parametrize(
    ("data", "shape", "message"),
    [
        (bytes(24 + 32), (8, 12), "whole blocks of 128"),
        (bytes(32 + 31), (1, 128), "expected 64 bytes of I2_S, found 63"),
        (b"\xc0" + bytes(63), (1, 128), "2-bit value 3"),
        (bytes(32) + struct.pack("<f", float("nan")) + bytes(28), (1, 128), "finite"),
    ],
)
def test_i2_s_refuses(data: bytes, shape: tuple[int, int], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        decode_i2_s(as_bytes(data), shape, "w")


@pytest.mark.parametrize("kind", TQ)
def test_tq_equals_gguf(kind: str) -> None:
    codes = random_codes(np.random.default_rng(3), 3, 512)
    data = quantise(codes.astype(np.float32) * np.float32(0.125), kind)
    decoded, scale = TQ[kind](data, (3, 512), "w")
    np.testing.assert_array_equal(decoded, codes)
    assert (decoded.dtype, scale) == (np.int8, 0.125)
    reference = quants.dequantize(data.reshape(3, -1), GGMLQuantizationType[kind])
    np.testing.assert_array_equal(decoded * np.float32(scale), reference)


@pytest.mark.parametrize("byte", range(0, 256, 5))
def test_tq1_0_digits_equal_gguf_for_any_byte(byte: int) -> None:
    data = np.concatenate([np.full(52, byte, dtype=np.uint8), as_bytes(struct.pack("<e", 1.0))])
    decoded, _ = decode_tq1_0(data, (1, 256), "w")
    np.testing.assert_array_equal(decoded, quants.dequantize(data[None], GGMLQuantizationType.TQ1_0))


@pytest.mark.parametrize("kind", TQ)
def test_tq_accepts_a_block_of_zeros(kind: str) -> None:
    codes = random_codes(np.random.default_rng(4), 2, 512)
    codes[0, 256:] = 0
    decoded, scale = TQ[kind](quantise(codes * np.float32(0.5), kind), (2, 512), "w")
    np.testing.assert_array_equal(decoded, codes)
    assert scale == 0.5


def test_tq2_0_ignores_the_codes_of_a_block_of_scale_0() -> None:
    data = np.zeros(66, dtype=np.uint8)  # codes of -1 with scale 0
    decoded, scale = decode_tq2_0(data, (1, 256), "w")
    assert not decoded.any()
    assert np.isfinite(scale)


@pytest.mark.parametrize("kind", TQ)
@pytest.mark.parametrize("factor", [2.0, -1.0])
def test_tq_refuses_several_scales(kind: str, factor: float) -> None:
    values = random_codes(np.random.default_rng(5), 2, 256).astype(np.float32)
    data = quantise(values, kind).reshape(2, -1).copy()
    data[1, -2:] = as_bytes(struct.pack("<e", factor))
    with pytest.raises(ModelFileError, match="tensor w: not one-scale ternary"):
        TQ[kind](data.reshape(-1), (2, 256), "w")


@pytest.mark.parametrize("kind", TQ)
@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_tq_refuses_a_scale_that_is_not_finite(kind: str, scale: float) -> None:
    data = quantise(np.ones((1, 256), dtype=np.float32), kind).copy()
    data[-2:] = as_bytes(struct.pack("<e", scale))
    with pytest.raises(ModelFileError, match="not finite"):
        TQ[kind](data, (1, 256), "w")


@pytest.mark.parametrize("kind", TQ)
def test_tq_refuses_wrong_sizes(kind: str) -> None:
    with pytest.raises(ModelFileError, match="multiple of 256"):
        TQ[kind](np.zeros(66, dtype=np.uint8), (2, 128), "w")
    with pytest.raises(ModelFileError, match="bytes of"):
        TQ[kind](np.zeros(65, dtype=np.uint8), (1, 256), "w")


def test_tq2_0_refuses_the_value_3() -> None:
    data = np.zeros(66, dtype=np.uint8)
    data[3] = 0b1100
    with pytest.raises(ModelFileError, match="2-bit value 3"):
        decode_tq2_0(data, (1, 256), "w")
