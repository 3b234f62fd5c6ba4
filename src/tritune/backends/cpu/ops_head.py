"""The output head and the loss."""

from __future__ import annotations

from tritune.backends.base import Buffer, DType, Table
from tritune.errors import DeviceError

from .buffers import CpuTable, own_table
from .core import CpuCore

_KINDS: dict[DType, int] = {"f32": 0, "f16": 1, "bf16": 2}


class HeadOps(CpuCore):
    """See Backend for each op's contract, native/<op>.cpp for its work split."""

    def logits(self, x: Buffer, table: Table, out: Buffer) -> None:
        """See Backend.logits."""
        own = self._head_table("logits", table, x, out)
        rows = x.shape[0]
        scratch = self._bytes("logits", self.native.logits_scratch_bytes(self._pool, rows, own.columns))
        self.call("logits", x, own, _KINDS[own.dtype], out, rows, own.columns, own.rows, scratch)

    def logits_backward(self, dlogits: Buffer, table: Table, dx: Buffer) -> None:
        """See Backend.logits_backward."""
        own = self._head_table("logits_backward", table, dx, dlogits)
        rows = dx.shape[0]
        scratch = self._bytes("logits_backward", self.native.logits_backward_scratch_bytes(self._pool, rows))
        self.call("logits_backward", dlogits, own, _KINDS[own.dtype], dx, rows, own.columns, own.rows, scratch)

    def cross_entropy(self, logits: Buffer, targets: Buffer, coefficients: Buffer, nll: Buffer, backward: bool) -> None:
        """See Backend.cross_entropy."""
        rows, vocabulary = logits.shape
        self.expect("cross_entropy", "logits", logits, "f32", rows, vocabulary)
        self.expect("cross_entropy", "targets", targets, "i32", rows)
        self.expect("cross_entropy", "coefficients", coefficients, "f32", rows)
        self.expect("cross_entropy", "nll", nll, "f32", rows)
        scratch = self._bytes("cross_entropy", self.native.cross_entropy_scratch_bytes(rows, vocabulary))
        self.call("cross_entropy", logits, targets, coefficients, nll, rows, vocabulary, backward, scratch)

    def _head_table(self, op: str, table: Table, hidden: Buffer, logits: Buffer) -> CpuTable:
        """The table of a product between hidden f32 [R, D] and logits f32 [R, V]."""
        own = own_table(table)
        if own.dtype not in _KINDS:
            raise DeviceError(f"{op}: a table of {own.dtype}, expected one of {', '.join(_KINDS)}")
        rows = hidden.shape[0]
        self.expect(op, "the hidden side", hidden, "f32", rows, own.columns)
        self.expect(op, "the side of the logits", logits, "f32", rows, own.rows)
        return own

    def _bytes(self, op: str, count: int) -> Buffer:
        return self.scratch(op, -(-count // 4))
