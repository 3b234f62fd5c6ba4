"""The CPU backend: the core and all ops."""

from __future__ import annotations

from .core import CpuCore
from .ops_attention import AttentionOps
from .ops_head import HeadOps
from .ops_linear import LinearOps
from .ops_optimizer import OptimizerOps
from .ops_rope import RopeOps
from .ops_rows import RowOps
from .ops_sample import SampleOps


class CpuBackend(LinearOps, RowOps, RopeOps, AttentionOps, HeadOps, SampleOps, OptimizerOps, CpuCore):
    """All ops on the CPU in native code."""
