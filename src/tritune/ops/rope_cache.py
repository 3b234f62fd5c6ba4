"""rope_cache: rotate q and k, and write k and v into the paged cache.

Position p of sequence s lives in block block_tables[s, p // block_size], at offset p % block_size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritune.ops.arrays import FloatArray, IntArray


def write_cache(
    x: FloatArray, cache: NDArray[np.generic], positions: IntArray, sequence: IntArray, block_tables: IntArray
) -> None:
    """Write x [T, G, d] into cache [blocks, G, block_size, d] (rounded to its dtype); spare rows write nothing."""
    rows = np.flatnonzero(positions >= 0)
    block_size = cache.shape[2]
    blocks = block_tables[sequence[rows], positions[rows] // block_size]
    cache[blocks, :, positions[rows] % block_size, :] = x[rows].astype(cache.dtype)
