from __future__ import annotations

from .core import CpuCore


class AttentionOps(CpuCore):
    """See Backend for each op's contract, native/<op>.cpp for its work split."""
