"""What the op classes of the NumPy backend share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import Buffer
from tritune.backends.numpy.buffers import NumpyBuffer


class Calls:
    """Runs a call now, or records it."""

    dtype: np.dtype[Any]

    def _do(self, call: Callable[[], None]) -> None:
        raise NotImplementedError


def array(buffer: Buffer) -> NDArray[Any]:
    """The array behind a buffer of this backend."""
    assert isinstance(buffer, NumpyBuffer), f"a {type(buffer).__name__} given to the NumPy backend"
    return buffer.array


def optional(buffer: Buffer | None) -> NDArray[Any] | None:
    """The array behind a buffer that may be missing."""
    return None if buffer is None else array(buffer)


def heads_of(buffer: Buffer, heads: int, head_dim: int) -> NDArray[Any]:
    """A view [T, heads, head_dim] of a buffer [T, heads * head_dim]."""
    x = array(buffer)
    return x.reshape(x.shape[0], heads, head_dim)
