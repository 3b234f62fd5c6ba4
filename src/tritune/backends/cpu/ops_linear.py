from __future__ import annotations

from .core import CpuCore


class LinearOps(CpuCore):
    """See Backend for each op's contract, native/<op>.cpp for its work split."""
