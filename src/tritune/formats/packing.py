"""Packed ternary matrices: bytes in, int8 codes in {-1, 0, 1} out.

Four layouts. Hugging Face's (transformers' ``integrations/bitnet.py``) spreads a byte over four rows; I2_S (bitnet.cpp)
over a block of 128 values of the flattened matrix; TQ1_0 and TQ2_0 (gguf-py's ``quants.py``) have a scale for each 256
values of a row. All functions raise ModelFileError, naming the tensor, for bytes that are not ternary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ModelFileError

Codes = NDArray[np.int8]
Bytes = NDArray[np.uint8]

_UNPACKED_AT_ONCE = 1 << 16  # bytes; they stay in a core's cache

I2_S_BLOCK = 128  # values in 32 bytes
I2_S_TAIL = 32  # bytes after the blocks; the first four are the scale
TQ_BLOCK = 256  # values of a row that share a scale
TQ1_0_BYTES = 54  # 48 + 4 bytes of base-3 digits, then an f16 scale
TQ2_0_BYTES = 66  # 64 bytes of 2-bit codes, then an f16 scale


def unpack_hf(packed: Bytes, name: str) -> Codes:
    """Unpack uint8 [R, in] to codes int8 [4R, in].

    Bits 2i and 2i + 1 of byte row r hold row r + i * R, as code + 1. The value 3 is no ternary code and is refused.
    """
    _refuse_threes(packed, name)
    rows = packed.shape[0]
    codes = np.empty((4 * rows, packed.shape[1]), dtype=np.int8)
    step = max(1, _UNPACKED_AT_ONCE // max(1, packed.shape[1]))
    for start in range(0, rows, step):
        part = packed[start : start + step]
        for i in range(4):
            out = codes[i * rows + start : i * rows + start + len(part)].view(np.uint8)
            np.right_shift(part, 2 * i, out=out)
            out &= 3
            out -= 1  # 0 wraps to 255, which is -1
    return codes


def i2_s_nbytes(values: int) -> int:
    """Bytes of an I2_S tensor of ``values`` values."""
    return values // 4 + I2_S_TAIL


def decode_i2_s(data: Bytes, shape: tuple[int, int], name: str) -> tuple[Codes, float]:
    """Codes [out, in] and scale of an I2_S tensor.

    Byte p of a 32-byte block holds values p, 32 + p, 64 + p, 96 + p of 128 in bits 7-6, 5-4, 3-2, 1-0, as code + 1.
    """
    values = shape[0] * shape[1]
    if values % I2_S_BLOCK:
        raise ModelFileError(
            f"tensor {name}: I2_S holds whole blocks of {I2_S_BLOCK} values; its shape {shape} does not"
        )
    if data.size != i2_s_nbytes(values):
        raise ModelFileError(f"tensor {name}: expected {i2_s_nbytes(values)} bytes of I2_S, found {data.size}")
    blocks = data[: values // 4].reshape(-1, 1, 32)
    _refuse_threes(blocks, name)
    shifts = np.array([6, 4, 2, 0], dtype=np.uint8).reshape(4, 1)
    codes = ((blocks >> shifts) & 3).view(np.int8)
    codes -= 1
    scale = float(np.frombuffer(data[values // 4 : values // 4 + 4].tobytes(), dtype="<f4")[0])
    if not np.isfinite(scale):
        raise ModelFileError(f"tensor {name}: its scale is {scale}; expected a finite number")
    return codes.reshape(shape), scale


def decode_tq2_0(data: Bytes, shape: tuple[int, int], name: str) -> tuple[Codes, float]:
    """Codes [out, in] and the one scale of a TQ2_0 tensor.

    Byte p of a half of 32 bytes holds values p, 32 + p, 64 + p, 96 + p of 128 from the low bits up, as code + 1.
    """
    blocks = _tq_blocks(data, shape, TQ2_0_BYTES, "TQ2_0", name)
    packed = blocks[:, :64].reshape(-1, 2, 1, 32)
    _refuse_threes(packed, name)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
    codes = ((packed >> shifts) & 3).view(np.int8)
    codes -= 1
    return _one_scale(codes.reshape(-1, TQ_BLOCK), blocks[:, 64:], shape, name)


def decode_tq1_0(data: Bytes, shape: tuple[int, int], name: str) -> tuple[Codes, float]:
    """Codes [out, in] and the one scale of a TQ1_0 tensor.

    A byte is a fraction b / 256 whose base-3 digits are codes + 1. 32 bytes of five digits, 16 of five, 4 of four;
    digit n of a group's byte p is value n * group + p.
    """
    blocks = _tq_blocks(data, shape, TQ1_0_BYTES, "TQ1_0", name)
    codes = np.empty((blocks.shape[0], TQ_BLOCK), dtype=np.int8)
    done = 0
    for start, stop, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        group = blocks[:, start:stop]
        for digit in range(digits):
            shifted = group * np.uint8(3**digit)  # modulo 256: drops the digits before this one
            codes[:, done : done + stop - start] = ((shifted.astype(np.uint16) * 3) >> 8).astype(np.int8) - 1
            done += stop - start
    return _one_scale(codes, blocks[:, 52:], shape, name)


def _refuse_threes(packed: Bytes, name: str) -> None:
    """Refuse 2-bit fields of value 3. Works on slices, so that its scratch stays small."""
    for part in np.array_split(packed, max(1, packed.size >> 22)):
        if np.any(part & (part >> 1) & 0x55):
            raise ModelFileError(f"tensor {name}: holds the 2-bit value 3; expected ternary weights (0, 1 or 2)")


def _tq_blocks(data: Bytes, shape: tuple[int, int], block_bytes: int, kind: str, name: str) -> Bytes:
    """The blocks [n, block_bytes] of a tensor, once its size is checked."""
    if shape[1] % TQ_BLOCK:
        raise ModelFileError(f"tensor {name}: {kind} needs rows of a multiple of {TQ_BLOCK} values, found {shape[1]}")
    expected = shape[0] * shape[1] // TQ_BLOCK * block_bytes
    if data.size != expected:
        raise ModelFileError(f"tensor {name}: expected {expected} bytes of {kind}, found {data.size}")
    return data.reshape(-1, block_bytes)


def _one_scale(codes: Codes, scale_bytes: Bytes, shape: tuple[int, int], name: str) -> tuple[Codes, float]:
    """Codes in the tensor's shape and the scale that all blocks share.

    Blocks of scale 0 are blocks of zeros, whatever their codes; blocks of code 0 may have any scale.
    """
    scales = np.ascontiguousarray(scale_bytes).view("<f2").astype(np.float32).reshape(-1)
    if not np.isfinite(scales).all():
        raise ModelFileError(f"tensor {name}: a block's scale is not finite")
    codes[scales == 0] = 0
    used = scales[codes.any(axis=1)]
    if used.size == 0:
        return codes.reshape(shape), 1.0
    if np.any(used != used[0]):
        raise ModelFileError(
            f"tensor {name}: not one-scale ternary: its blocks have scales from {used.min():g} to {used.max():g}"
        )
    return codes.reshape(shape), float(used[0])
