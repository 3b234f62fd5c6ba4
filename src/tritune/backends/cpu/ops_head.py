"""The output head and the loss."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tritune.backends.base import Buffer, DType, Table
from tritune.errors import DeviceError

from .buffers import CpuBuffer, CpuTable, own_table
from .core import CpuCore

_KINDS: dict[DType, int] = {"f32": 0, "f16": 1, "bf16": 2}


@dataclass(frozen=True)
class RoughRows:
    """A table's rows in 6 bits a weight, and bounds of what that leaves out: see native/rough_kernels.h."""

    codes: CpuBuffer  # i8 [V, bytes of a row]
    scales: CpuBuffer  # f32 [V]
    errors: CpuBuffer  # f32 [V]
    norms: CpuBuffer  # f32 [V]


class HeadOps(CpuCore):
    """See Backend for each op's contract, native/<op>.cpp for its work split."""

    rough_head = True
    """Whether sampling reads the head in rough rows first. It draws the same tokens either way."""
    _rough: WeakKeyDictionary[CpuTable, RoughRows] | None = None
    _counts: CpuBuffer | None = None

    def sampling_logits(
        self,
        x: Buffer,
        table: Table,
        out: Buffer,
        settings: Buffer,
        state: Buffer,
        seen: Buffer,
        allowed: Buffer | None,
    ) -> None:
        """See Backend.sampling_logits.

        Greedy and top-k read the table's rough rows, then as stored those that could be among the k best: greedy 0.4
        times the bytes. Other settings, more than four rows, and an int8 head read the whole table as it is held.
        """
        if not self.rough_head or own_table(table).scales is not None:
            return self.logits(x, table, out)
        op, rows = "sampling_logits", x.shape[0]
        own = self._head_table(op, table, x, out)
        words = -(-own.rows // 32)
        self.expect(op, "settings", settings, "f32", rows, 4)
        self.expect(op, "state", state, "u32", rows, 4)
        for name, words_of in (("seen", seen), ("allowed", allowed)):
            if words_of is not None:
                self.expect(op, name, words_of, "u32", rows, words)
        rough = self._rough_rows(own)
        if self._counts is None:
            self._counts = self.empty((2,), "i32")
        needed = self.native.sampling_logits_scratch_bytes(self._pool, rows, own.columns, own.rows)
        self.call(
            op, x, own, _KINDS[own.dtype], rough.codes, rough.scales, rough.errors, rough.norms, out, settings, state,
            seen, allowed, rows, own.columns, own.rows, words, self._bytes(op, needed), self._counts,
        )  # fmt: skip
        return None

    def sampling_bytes(self, table: Table) -> int:
        """Bytes of the head that drawing a greedy token reads, but for the few rows that are read as stored."""
        own = own_table(table)
        if not self.rough_head or own.scales is not None:
            return own.nbytes
        rough = self._rough_rows(own)
        return sum(b.nbytes for b in (rough.codes, rough.scales, rough.errors, rough.norms))

    def rough_counts(self) -> tuple[int, int]:
        """(rows of x that sampling_logits took over rough rows, stored rows that were read for them) so far."""
        if self._counts is None:
            return 0, 0
        heads, read = self._counts.array.tolist()
        return heads, read

    def _rough_rows(self, table: CpuTable) -> RoughRows:
        """The rough rows of a table; made at its first use, also while recording."""
        if self._rough is None:
            self._rough = WeakKeyDictionary()
        if table not in self._rough:
            codes = self.empty((table.rows, self.native.rough_bytes(table.columns)), "i8")
            rough = RoughRows(codes, *(self.empty((table.rows,)) for _ in range(3)))
            tape = self.native.Tape()
            addresses = [b.address for b in (rough.codes, rough.scales, rough.errors, rough.norms)]
            self.native.make_rough(tape, table.address, _KINDS[table.dtype], *addresses, table.columns, table.rows)
            self.native.run(self._pool, [tape])
            self._rough[table] = rough
        return self._rough[table]

    def logits(self, x: Buffer, table: Table, out: Buffer) -> None:
        """See Backend.logits."""
        own = self._head_table("logits", table, x, out)
        rows = x.shape[0]
        scratch = self._bytes("logits", self.native.logits_scratch_bytes(self._pool, rows, own.columns))
        self._product("logits", x, own, out, rows, scratch)

    def logits_backward(self, dlogits: Buffer, table: Table, dx: Buffer) -> None:
        """See Backend.logits_backward."""
        own = self._head_table("logits_backward", table, dx, dlogits)
        rows = dx.shape[0]
        scratch = self._bytes("logits_backward", self.native.logits_backward_scratch_bytes(self._pool, rows))
        self._product("logits_backward", dlogits, own, dx, rows, scratch)

    def _product(self, op: str, source: Buffer, table: CpuTable, target: Buffer, rows: int, scratch: Buffer) -> None:
        sizes = rows, table.columns, table.rows, scratch
        if table.scales is None:
            self.call(op, source, table, _KINDS[table.dtype], target, *sizes)
        else:
            self.call("int8_" + op, source, table, table.scales, target, *sizes)

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
        if own.scales is None and own.dtype not in _KINDS:
            raise DeviceError(f"{op}: a table of {own.dtype}, expected one of {', '.join(_KINDS)}")
        rows = hidden.shape[0]
        self.expect(op, "the hidden side", hidden, "f32", rows, own.columns)
        self.expect(op, "the side of the logits", logits, "f32", rows, own.rows)
        return own

    def _bytes(self, op: str, count: int) -> Buffer:
        return self.scratch(op, -(-count // 4))
