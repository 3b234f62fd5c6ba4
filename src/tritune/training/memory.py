"""How much memory a micro-batch takes, and the largest one that the host has room for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np

from tritune.backends.base import NUMPY_DTYPES, Backend, DType
from tritune.lora import Adapter
from tritune.models.backward import BackwardBuffers
from tritune.models.block_buffers import BlockBuffers, QuantBuffers
from tritune.models.config import ModelConfig
from tritune.models.loss_head import head_bytes

MEMINFO = Path("/proc/meminfo")

SHARE = 0.8
"""Of the host's free memory that a run takes at most."""


class _Counter:
    """Counts the bytes of the buffers that somebody would make on a backend."""

    def __init__(self) -> None:
        self.bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: DType = "f32") -> None:
        """Count a buffer."""
        self.bytes += int(np.prod(shape, dtype=np.int64)) * np.dtype(NUMPY_DTYPES[dtype]).itemsize

    def empty_together(self, *wanted: tuple[tuple[int, ...], DType]) -> list[None]:
        """Count buffers."""
        return [self.empty(*one) for one in wanted]


def training_bytes(
    config: ModelConfig, adapter: Adapter, rows: int, *, recompute: bool = True, floats: bool = False
) -> int:
    """Bytes of a TrainingState for micro-batches of ``rows`` tokens, the adapter's own five flat buffers included."""
    counter = _Counter()
    backend = cast("Backend", counter)
    rank = adapter.layout.rank
    first = BlockBuffers.make(backend, config, rows, rank, floats=floats, training=True)
    for _ in range(config.num_layers - 1):  # as TrainingState has them
        if recompute:
            counter.empty((rows, rank))
        else:
            BlockBuffers.make(backend, config, rows, rank, floats=floats, training=True, inputs_of=first)
    QuantBuffers.make(backend, config, rows)
    BackwardBuffers.make(backend, config, rows, rank)
    inputs = (config.num_layers + 1) * rows * config.hidden_size * 4
    return counter.bytes + inputs + head_bytes(config, rows) + 4 * adapter.parameters.nbytes


def free_memory() -> int | None:
    """Bytes that this host has free for a program; None where the system does not say."""
    try:
        for line in MEMINFO.read_text(encoding="ascii").splitlines() if MEMINFO.exists() else ():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def fitting_tokens(
    config: ModelConfig,
    adapter: Adapter,
    wanted: int,
    least: Callable[[], int],
    budget: int,
    *,
    recompute: bool,
    floats: bool,
) -> int:
    """The largest of wanted, wanted / 2, wanted / 4 … that fits ``budget`` bytes; ``least()`` (the longest row, which
    takes time to find) at any rate."""
    tokens = wanted
    while training_bytes(config, adapter, tokens, recompute=recompute, floats=floats) > budget and tokens > least():
        tokens = max(least(), -(-tokens // 2))
    return tokens
