"""What an op makes of its outputs for the linear that follows: shares of LoRA's first factor."""

from __future__ import annotations

from dataclasses import dataclass

from tritune.backends.base import Buffer, LoRA

from .core import WebGPUCore

HALF = 1 << 16
"""Numbers in each half of the scratch for LoRA's first factors: one is read while the other is written."""


@dataclass(frozen=True)
class Tail:
    """What an op makes of its outputs for the next linear's LoRA."""

    gain: Buffer | None  # of the norm between
    lora: LoRA

    @property
    def width(self) -> int:
        """Numbers of LoRA's first factor."""
        return self.lora.a.shape[1]


def sums_scratch(core: WebGPUCore) -> Buffer:
    """f32: LoRA's first factors on their way from one op to the next."""
    return core.scratch("sums", 2 * HALF)


def fits_vectors(lora: LoRA) -> bool:
    """Whether its factors can be read four numbers at a time."""
    return lora.rank % 4 == 0
