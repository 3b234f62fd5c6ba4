"""The matrix products of the WebGPU backend: linear with LoRA, the head, and their backwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import Buffer, Dropout, DType, LoRA, LoRAGrad, Rows, Table, TernaryWeight
from tritune.errors import DeviceError
from tritune.formats.file_bytes import RowSource
from tritune.ops.dropout import dropout_threshold

from .core import WebGPUCore
from .weights import WebGPUTable, WebGPUTernary, upload_table, upload_ternary

FEW_ROWS = 8  # up to this many rows a kernel reads the matrix once for all of them; beyond, tiles are worth it
MAX_PARTS = 4
_TILE = 64
_NO_PART = 0xFFFFFFFF


class LinearOps(WebGPUCore):
    """pack_ternary, table, linear, linear_backward, logits, logits_backward: see Backend."""

    def pack_ternary(self, parts: Sequence[tuple[NDArray[np.int8], float]]) -> TernaryWeight:
        """See Backend.pack_ternary."""
        if len(parts) > MAX_PARTS:
            raise DeviceError(f"pack_ternary: {len(parts)} parts, the kernels know at most {MAX_PARTS}")
        return upload_ternary(self.memory, parts, self.device.max_binding)

    def table(self, rows: RowSource, dtype: DType, scales: NDArray[np.float32] | None = None) -> Table:
        """See Backend.table. There is no int8 head on this device yet."""
        if scales is not None:
            raise DeviceError("head int8: WebGPU reads the output head as stored; expected head stored, or device cpu")
        return upload_table(self.memory, rows, dtype, self.device.max_binding)

    def linear(
        self,
        x: Buffer,
        codes: Buffer | None,
        scales: Buffer | None,
        weight: TernaryWeight,
        y: Buffer,
        rows: Rows,
        *,
        accumulate: bool = False,
        lora: LoRA | None = None,
        dropout: Dropout | None = None,
    ) -> None:
        """See Backend.linear: one dispatch for the ternary product, two more for LoRA."""
        w = _own_weight(weight)
        tokens = y.shape[0]
        exact = codes is not None
        buffers = [x if codes is None else codes, w.words, w.row_scales, y]
        if exact:
            if scales is None:
                raise DeviceError("linear: codes were given without their scales")
            buffers.append(scales)
        params = (tokens, w.out_features, w.in_features, accumulate)
        if tokens <= FEW_ROWS:
            variant = {"exact": exact, "rows": rows_variant(tokens)}
            grid = (ceil_div(w.out_features, 4), 1, 1)
            self.dispatch("linear_gemv", params=params, buffers=buffers, grid=grid, variant=variant)
        else:
            grid = tiles(tokens, w.out_features)
            self.dispatch("linear_gemm", params=params, buffers=buffers, grid=grid, variant={"exact": exact})
        if lora is not None:
            self._lora_forward(x, w, y, rows, lora, _active(dropout))

    def _lora_forward(
        self, x: Buffer, w: WebGPUTernary, y: Buffer, rows: Rows, lora: LoRA, dropout: Dropout | None
    ) -> None:
        """down = A · dropout(x), then y += multiplier * scale * B · down."""
        tokens, width = y.shape[0], len(w.parts) * lora.rank
        few = tokens <= FEW_ROWS
        self.dispatch(
            "lora_down_rows" if few else "lora_down_gemm",
            params=(tokens, width, w.in_features, *_dropout_params(dropout)),
            buffers=[x, lora.a, rows.slot, lora.down, *_dropout_state(dropout)],
            grid=(ceil_div(width, 4), tokens, 1) if few else tiles(tokens, width),
            variant={"dropout": dropout is not None},
        )
        self.dispatch(
            "lora_up_rows" if few else "lora_up_gemm",
            params=(tokens, w.out_features, width, lora.rank, *_part_ends(w.parts)),
            buffers=[lora.down, lora.b, rows.slot, rows.multiplier, lora.scale, y],
            grid=(ceil_div(w.out_features, 64), tokens, 1) if few else tiles(tokens, w.out_features),
        )

    def linear_backward(
        self,
        dy: Buffer,
        x: Buffer,
        weight: TernaryWeight,
        rows: Rows,
        *,
        dx: Buffer | None,
        lora: LoRA | None = None,
        grad: LoRAGrad | None = None,
        dropout: Dropout | None = None,
    ) -> None:
        """See Backend.linear_backward: one dispatch for the base branch, up to four for LoRA."""
        w = _own_weight(weight)
        tokens = dy.shape[0]
        if dx is not None:
            self.dispatch(
                "linear_backward_gemm",
                params=(tokens, w.in_features, w.out_features),
                buffers=[dy, w.words, w.row_scales, dx],
                grid=tiles(tokens, w.in_features),
            )
        if lora is not None and (dx is not None or grad is not None):
            self._lora_backward(dy, x, w, rows, lora, dx, grad, _active(dropout))

    def _lora_backward(
        self,
        dy: Buffer,
        x: Buffer,
        w: WebGPUTernary,
        rows: Rows,
        lora: LoRA,
        dx: Buffer | None,
        grad: LoRAGrad | None,
        dropout: Dropout | None,
    ) -> None:
        """down_grad, then the gradients of B, A and x that follow from it."""
        tokens, width = dy.shape[0], len(w.parts) * lora.rank
        if lora.down_grad is None:
            raise DeviceError("linear_backward: LoRA.down_grad is missing")
        if grad is not None and lora.a.shape[0] != 1:
            raise DeviceError(f"linear_backward: gradients are for a pool of one adapter, found {lora.a.shape[0]}")
        ends, drop, state = _part_ends(w.parts), _dropout_params(dropout), _dropout_state(dropout)
        variant = {"dropout": dropout is not None}
        self.dispatch(
            "lora_down_grad_gemm",
            params=(tokens, width, w.out_features, lora.rank, *ends),
            buffers=[dy, lora.b, rows.slot, rows.multiplier, lora.scale, lora.down_grad],
            grid=tiles(tokens, width),
        )
        if grad is not None:
            self.dispatch(
                "lora_grad_b_gemm",
                params=(w.out_features, width, tokens, lora.rank, *ends),
                buffers=[dy, lora.down, rows.multiplier, lora.scale, grad.b],
                grid=tiles(w.out_features, width),
            )
            self.dispatch(
                "lora_grad_a_gemm",
                params=(width, w.in_features, tokens, *drop),
                buffers=[lora.down_grad, x, grad.a, *state],
                grid=tiles(width, w.in_features),
                variant=variant,
            )
        if dx is not None:
            self.dispatch(
                "lora_dx_gemm",
                params=(tokens, w.in_features, width, *drop),
                buffers=[lora.down_grad, lora.a, rows.slot, dx, *state],
                grid=tiles(tokens, w.in_features),
                variant=variant,
            )

    def logits(self, x: Buffer, table: Table, out: Buffer) -> None:
        """See Backend.logits: a dispatch for each shard of the table."""
        own = _own_table(table)
        rows = x.shape[0]
        for shard in own.shards:
            buffers = [x, shard.buffer, out]
            if rows <= FEW_ROWS:
                self.dispatch(
                    "logits_gemv",
                    params=(rows, shard.rows, own.columns, own.rows, shard.first_row),
                    buffers=buffers,
                    grid=(ceil_div(shard.rows, 4), 1, 1),
                    variant={"format": own.dtype, "rows": rows_variant(rows)},
                )
            else:
                self.dispatch(
                    "logits_gemm",
                    params=(rows, shard.rows, own.columns, False, own.columns, 0, own.rows, shard.first_row),
                    buffers=buffers,
                    grid=tiles(rows, shard.rows),
                    variant={"format": own.dtype, "backward": False},
                )

    def logits_backward(self, dlogits: Buffer, table: Table, dx: Buffer) -> None:
        """See Backend.logits_backward: a dispatch for each shard of the table; the first writes, the others add."""
        own = _own_table(table)
        rows = dlogits.shape[0]
        for i, shard in enumerate(own.shards):
            self.dispatch(
                "logits_gemm",
                params=(rows, own.columns, shard.rows, i > 0, own.rows, shard.first_row, own.columns, 0),
                buffers=[dlogits, shard.buffer, dx],
                grid=tiles(rows, own.columns),
                variant={"format": own.dtype, "backward": True},
            )


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def tiles(m: int, n: int) -> tuple[int, int, int]:
    """The grid of gemm.wgsl for a product of m rows and n columns."""
    return ceil_div(n, _TILE), ceil_div(m, _TILE), 1


def rows_variant(rows: int) -> int:
    """The smallest of 1, 2, 4 and 8 that holds ``rows``."""
    return 1 << (max(rows, 1) - 1).bit_length()


def _part_ends(parts: tuple[int, ...]) -> list[int]:
    """The first output of parts 1, 2 and 3."""
    ends: list[int] = []
    first = 0
    for size in parts[:-1]:
        first += size
        ends.append(first)
    return ends + [_NO_PART] * (MAX_PARTS - 1 - len(ends))


def _active(dropout: Dropout | None) -> Dropout | None:
    return dropout if dropout is not None and dropout.rate > 0 else None


def _dropout_params(dropout: Dropout | None) -> tuple[int, int, float]:
    """module, threshold, keep_scale: the parameters of every kernel with a dropout variant."""
    if dropout is None:
        return 0, 0, 1.0
    return dropout.module, dropout_threshold(dropout.rate), 1.0 / (1.0 - dropout.rate)


def _dropout_state(dropout: Dropout | None) -> list[Buffer]:
    return [] if dropout is None else [dropout.state]


def _own_weight(weight: TernaryWeight) -> WebGPUTernary:
    if not isinstance(weight, WebGPUTernary):
        raise DeviceError(f"a weight of another backend ({type(weight).__name__}) was given to WebGPU")
    return weight


def _own_table(table: Table) -> WebGPUTable:
    if not isinstance(table, WebGPUTable):
        raise DeviceError(f"a table of another backend ({type(table).__name__}) was given to WebGPU")
    return table
