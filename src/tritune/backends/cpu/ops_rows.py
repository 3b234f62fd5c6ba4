"""Ops on single rows: embedding, norms, GLU, RoPE, and moving rows to the head and back."""

from __future__ import annotations

from tritune.backends.base import Buffer
from tritune.errors import DeviceError

from .buffers import own_buffer
from .core import CpuCore


class RowOps(CpuCore):
    """See Backend for each op's contract, native/<op>.cpp for its work split."""

    def zero(self, buffer: Buffer) -> None:
        """See Backend.zero."""
        own = own_buffer(buffer)
        self.call("zero", own, own.nbytes)

    def copy(self, source: Buffer, target: Buffer) -> None:
        """See Backend.copy."""
        a, b = own_buffer(source), own_buffer(target)
        if a.dtype != b.dtype or a.size != b.size:
            raise DeviceError(f"copy: source is {a.dtype} {list(a.shape)}, target {b.dtype} {list(b.shape)}")
        self.call("copy", a, b, a.nbytes)
