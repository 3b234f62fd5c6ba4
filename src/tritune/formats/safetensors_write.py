"""Writing safetensors files in bfloat16, piece by piece.

The safetensors library's NumPy part has no bfloat16, and wants all of a file in memory. A file is the header's length
(u64), the header (JSON, padded with spaces to 8 bytes), and the tensors one after another, little-endian.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BF16Tensor:
    """A tensor and its values as raw uint16 bits, in order, in pieces that are made while they are written."""

    shape: tuple[int, ...]
    pieces: Iterable[NDArray[np.uint16]]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        return 2 * math.prod(self.shape)


def to_bf16(values: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """Raw bfloat16, rounded to the nearest, ties to even; finite values only."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_bf16(path: Path, tensors: Mapping[str, BF16Tensor]) -> None:
    """Write tensors and flush them to the disk. Raises OSError."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            for piece in tensor.pieces:
                file.write(np.ascontiguousarray(piece, "<u2").data)
        file.flush()
        os.fsync(file.fileno())
