"""Ops on single rows: embedding, norms, GLU, and moving rows to the head and back."""

from __future__ import annotations

from tritune.backends.base import Buffer, Rows, Table
from tritune.errors import DeviceError

from .buffers import own_buffer, own_table, same_memory
from .core import CpuCore

FORMATS = {"f32": 0, "f16": 1, "bf16": 2}
"""``Format`` of native/rows_kernels.h."""
ACTIVATIONS = {"relu2": 0, "silu": 1}
"""``Activation`` of native/rows_kernels.h."""


class RowOps(CpuCore):
    """See Backend for each op's contract, native/<op>.cpp for its work split."""

    def zero(self, buffer: Buffer) -> None:
        """See Backend.zero."""
        own = own_buffer(buffer)
        self.call("zero", own, own.nbytes)

    def copy(self, source: Buffer, target: Buffer) -> None:
        """See Backend.copy; any dtype."""
        a, b = own_buffer(source), own_buffer(target)
        self.expect("copy", "target", target, a.dtype, *a.shape)
        self.call("copy", a, b, a.nbytes)

    def embed(self, tokens: Buffer, table: Table, x: Buffer) -> None:
        """See Backend.embed. Ids outside of the table give rows of zeros."""
        own = own_table(table)
        count = tokens.size
        if own.dtype not in FORMATS:
            raise DeviceError(f"embed: a table of {own.dtype}, expected one of {', '.join(FORMATS)}")
        self.expect("embed", "tokens", tokens, "i32", count)
        self.expect("embed", "x", x, "f32", count, own.columns)
        self.call("embed", tokens, own, FORMATS[own.dtype], x, count, own.rows, own.columns)

    def rms_norm_quant(
        self,
        x: Buffer,
        gain: Buffer | None,
        eps: float,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> None:
        """See Backend.rms_norm_quant."""
        rows, columns = _matrix("rms_norm_quant", "x", x)
        self.expect("rms_norm_quant", "x", x, "f32", rows, columns)
        scratch = self._check_norm_quant("rms_norm_quant", rows, columns, gain, normed, codes, scales)
        self.call("rms_norm_quant", x, gain, float(eps), normed, codes, scales, scratch, rows, columns)

    def glu_norm_quant(
        self,
        gate_up: Buffer,
        activation: str,
        gain: Buffer | None,
        eps: float,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> None:
        """See Backend.glu_norm_quant."""
        rows, both = _matrix("glu_norm_quant", "gate_up", gate_up)
        columns = both // 2
        self.expect("glu_norm_quant", "gate_up", gate_up, "f32", rows, 2 * columns)
        scratch = self._check_norm_quant("glu_norm_quant", rows, columns, gain, normed, codes, scales)
        act = ACTIVATIONS[activation]
        self.call("glu_norm_quant", gate_up, act, gain, float(eps), normed, codes, scales, scratch, rows, columns)

    def _check_norm_quant(
        self,
        op: str,
        rows: int,
        columns: int,
        gain: Buffer | None,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> Buffer | None:
        """Check what both norms are given; the scratch that they need."""
        if (codes is None) != (scales is None):
            raise DeviceError(f"{op}: codes and scales are given together or not at all")
        if gain is not None:
            self.expect(op, "gain", gain, "f32", columns)
        if codes is not None and scales is not None:
            self.expect(op, "codes", codes, "i8", rows, columns)
            self.expect(op, "scales", scales, "f32", rows)
        if normed is not None:
            self.expect(op, "normed", normed, "f32", rows, columns)
            return None
        return self.scratch("row", self.threads * columns)

    def rms_norm_backward(
        self, x: Buffer, gain: Buffer, eps: float, dy: Buffer, dx: Buffer, accumulate: bool = False
    ) -> None:
        """See Backend.rms_norm_backward."""
        op = "rms_norm_backward"
        rows, columns = _matrix(op, "x", x)
        if accumulate and same_memory(dx, dy):
            raise DeviceError(f"{op}: dx may not be dy when the gradient is added to it")
        for name, buffer in (("x", x), ("dy", dy), ("dx", dx)):
            self.expect(op, name, buffer, "f32", rows, columns)
        self.expect(op, "gain", gain, "f32", columns)
        self.call(op, x, gain, float(eps), dy, dx, accumulate, rows, columns)

    def glu_backward(
        self, gate_up: Buffer, activation: str, gain: Buffer | None, eps: float, dy: Buffer, dgate_up: Buffer
    ) -> None:
        """See Backend.glu_backward."""
        op = "glu_backward"
        rows, columns = _matrix(op, "dy", dy)
        self.expect(op, "dy", dy, "f32", rows, columns)
        self.expect(op, "gate_up", gate_up, "f32", rows, 2 * columns)
        self.expect(op, "dgate_up", dgate_up, "f32", rows, 2 * columns)
        if gain is not None:
            self.expect(op, "gain", gain, "f32", columns)
        self.call(op, gate_up, ACTIVATIONS[activation], gain, float(eps), dy, dgate_up, rows, columns)

    def gather_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        """See Backend.gather_rows."""
        rows, columns = _matrix("gather_rows", "x", x)
        self._move_rows("gather_rows", x, index, out, rows, columns, (rows, index.size))

    def scatter_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        """See Backend.scatter_rows."""
        rows, columns = _matrix("scatter_rows", "out", out)
        self._move_rows("scatter_rows", x, index, out, rows, columns, (index.size, rows))

    def next_rows(self, drawn: Buffer, rows: Rows) -> None:
        """See Backend.next_rows."""
        count = min(drawn.size, rows.tokens.size)
        self.expect("next_rows", "drawn", drawn, "i32", drawn.size)
        for name, buffer in (("tokens", rows.tokens), ("positions", rows.positions)):
            self.expect("next_rows", name, buffer, "i32", rows.tokens.size)
        self.call("next_rows", drawn, rows.tokens, rows.positions, count)

    def _move_rows(
        self, op: str, x: Buffer, index: Buffer, out: Buffer, rows: int, columns: int, sizes: tuple[int, int]
    ) -> None:
        self.expect(op, "index", index, "i32", index.size)
        self.expect(op, "x", x, "f32", sizes[0], columns)
        self.expect(op, "out", out, "f32", sizes[1], columns)
        self.call(op, x, index, out, index.size, rows, columns)


def _matrix(op: str, name: str, buffer: Buffer) -> tuple[int, int]:
    """Rows and columns of a buffer. Raises DeviceError when it has another number of dimensions."""
    if len(buffer.shape) != 2:
        raise DeviceError(f"{op}: {name} has the shape {list(buffer.shape)}, expected two dimensions")
    return buffer.shape[0], buffer.shape[1]
