"""Ops on single rows: embedding, norms, GLU, and moving rows to the head and back."""

from __future__ import annotations

from tritune.backends.base import Buffer, Table
from tritune.errors import DeviceError

from .buffers import own_buffer
from .core import WebGPUCore
from .weights import WebGPUTable

ELEMENTWISE_GRID = 1 << 15
"""Most workgroups of a kernel that strides over a flat buffer; each side of a grid may have at least 65535."""


class RowOps(WebGPUCore):
    """See Backend for each op's contract, kernels/<op>.wgsl for its layout and work split."""

    def zero(self, buffer: Buffer) -> None:
        """See Backend.zero."""
        words = own_buffer(buffer).nbytes // 4
        self.dispatch("zero", params=[words], buffers=[buffer], grid=self.elementwise_grid(words))

    def embed(self, tokens: Buffer, table: Table, x: Buffer) -> None:
        """See Backend.embed. Ids outside of the table give rows of zeros."""
        if not isinstance(table, WebGPUTable):
            raise DeviceError(f"embed: a table of another backend ({type(table).__name__}) was given to WebGPU")
        words = table.columns if table.dtype == "f32" else table.columns // 2
        for shard in table.shards:
            self.dispatch(
                "embed",
                params=[tokens.size, words, shard.first_row, shard.rows, table.rows],
                buffers=[tokens, shard.buffer, x],
                grid=(tokens.size, 1, 1),
                variant={"format": table.dtype},
            )

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
        self._norm_quant("rms_norm_quant", {}, x, x.shape[-1], gain, eps, normed, codes, scales)

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
        variant: dict[str, object] = {"activation": activation}
        self._norm_quant("glu_norm_quant", variant, gate_up, gate_up.shape[-1] // 2, gain, eps, normed, codes, scales)

    def _norm_quant(
        self,
        kernel: str,
        variant: dict[str, object],
        x: Buffer,
        columns: int,
        gain: Buffer | None,
        eps: float,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> None:
        if (codes is None) != (scales is None):
            raise DeviceError(f"{kernel}: codes and scales are given together or not at all")
        rows = x.shape[0]
        buffers = [x, gain, normed, codes, scales]
        self.dispatch(
            kernel,
            params=[rows, columns // 4, float(eps)],
            buffers=[buffer for buffer in buffers if buffer is not None],
            grid=(rows, 1, 1),
            variant={**variant, "norm": gain is not None, "keep": normed is not None, "quant": codes is not None},
        )

    def rms_norm_backward(
        self, x: Buffer, gain: Buffer, eps: float, dy: Buffer, dx: Buffer, accumulate: bool = False
    ) -> None:
        """See Backend.rms_norm_backward."""
        in_place = same_memory(dx, dy)
        if in_place and accumulate:
            raise DeviceError("rms_norm_backward: dx may not be dy when the gradient is added to it")
        rows, columns = x.shape
        self.dispatch(
            "rms_norm_backward",
            params=[rows, columns // 4, float(eps)],
            buffers=[x, gain, dy] if in_place else [x, gain, dy, dx],
            grid=(rows, 1, 1),
            variant={"in_place": in_place, "accumulate": accumulate},
        )

    def glu_backward(
        self, gate_up: Buffer, activation: str, gain: Buffer | None, eps: float, dy: Buffer, dgate_up: Buffer
    ) -> None:
        """See Backend.glu_backward."""
        in_place = same_memory(gate_up, dgate_up)
        rows, columns = dy.shape
        buffers = [gate_up, gain, dy, None if in_place else dgate_up]
        self.dispatch(
            "glu_backward",
            params=[rows, columns // 4, float(eps)],
            buffers=[buffer for buffer in buffers if buffer is not None],
            grid=(rows, 1, 1),
            variant={"activation": activation, "norm": gain is not None, "in_place": in_place},
        )

    def gather_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        """See Backend.gather_rows."""
        self._move_rows("gather_rows", x, index, out, x.shape[0])

    def scatter_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        """See Backend.scatter_rows."""
        self.zero(out)
        self._move_rows("scatter_rows", x, index, out, out.shape[0])

    def _move_rows(self, kernel: str, x: Buffer, index: Buffer, out: Buffer, num_rows: int) -> None:
        params = [index.size, num_rows, x.shape[-1] // 4]
        self.dispatch(kernel, params=params, buffers=[x, index, out], grid=(index.size, 1, 1))

    def elementwise_grid(self, count: int) -> tuple[int, int, int]:
        """The grid of a kernel that strides over ``count`` elements, one a thread at a time."""
        return min(-(-count // self.device.workgroup_size), ELEMENTWISE_GRID), 1, 1


def same_memory(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers are the same range of device memory, so that it must be bound once."""
    first, second = own_buffer(a), own_buffer(b)
    return first.arena is second.arena and first.offset == second.offset and first.nbytes == second.nbytes
