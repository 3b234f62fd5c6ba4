"""The matrix products of the WebGPU backend: linear with LoRA, the head, and their backwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import Buffer, Dropout, DType, LoRA, LoRAGrad, Rows, Table, TernaryWeight
from tritune.errors import DeviceError
from tritune.formats.file_bytes import RowSource
from tritune.ops.dropout import dropout_threshold

from .few_rows import FEW_ROWS, FewRowsOps
from .ops_gemm import GemmOps, ceil_div
from .weights import MAX_PARTS, TableShard, WebGPUTable, WebGPUTernary, part_ends, upload_table, upload_ternary


class LinearOps(FewRowsOps, GemmOps):
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
        """See Backend.linear.

        One row, recorded: see one_row.py. Few rows: one dispatch, after one for LoRA's first factor unless the op
        recorded before was the norm that made x: then that makes it. Many rows: one for the ternary product, two more
        for LoRA.
        """
        w = _own_weight(weight)
        tokens = y.shape[0]
        if (codes is None) != (scales is None):
            raise DeviceError("linear: codes and their scales are given together or not at all")
        if _active(dropout) is None and self.linear_one(codes, scales, w, y, rows, accumulate, lora):
            return
        if tokens <= FEW_ROWS:
            if lora is not None:
                self._lora_down_few(x, codes, w, rows, lora, _active(dropout))
            self.linear_few(x, codes, scales, w, y, rows, accumulate, lora)
            return
        buffers = [x if codes is None else codes, w.words, w.row_scales, y]
        if scales is not None:
            buffers.append(scales)
        size = (tokens, w.out_features, w.in_features)
        self.gemm("linear_gemm", size, buffers, params=(accumulate,), variant={"exact": codes is not None})
        if lora is not None:
            self._lora_forward(x, w, y, rows, lora, _active(dropout))

    def _lora_down_few(
        self, x: Buffer, codes: Buffer | None, w: WebGPUTernary, rows: Rows, lora: LoRA, dropout: Dropout | None
    ) -> None:
        """down = A · dropout(x) for few rows."""
        tokens, width = x.shape[0], len(w.parts) * lora.rank
        norm = self.take_norm(x, codes) if dropout is None else None
        if norm is not None:
            norm.run_with_lora_down(lora, rows, width)
            return
        self.dispatch(
            "lora_down_rows",
            params=(tokens, width, w.in_features, *_dropout_params(dropout)),
            buffers=[x, lora.a, rows.slot, lora.down, *_dropout_state(dropout)],
            grid=(ceil_div(width, 4), tokens, 1),
            variant={"dropout": dropout is not None, "half": lora.a.dtype == "f16"},
        )

    def _lora_forward(
        self, x: Buffer, w: WebGPUTernary, y: Buffer, rows: Rows, lora: LoRA, dropout: Dropout | None
    ) -> None:
        """down = A · dropout(x), then y += multiplier * scale * B · down, for many rows."""
        tokens, width = y.shape[0], len(w.parts) * lora.rank
        of_rank = {"aligned": lora.rank % 4 == 0, "half": lora.a.dtype == "f16"}
        self.gemm(
            "lora_down_gemm",
            (tokens, width, w.in_features),
            [x, lora.a, rows.slot, lora.down, *_dropout_state(dropout)],
            params=_dropout_params(dropout),
            variant={"dropout": dropout is not None, **of_rank},
        )
        self.gemm(
            "lora_up_gemm",
            (tokens, w.out_features, width),
            [lora.down, lora.b, rows.slot, rows.multiplier, lora.scale, y],
            params=(lora.rank, *part_ends(w.parts)),
            variant=of_rank,
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
            size = (tokens, w.in_features, w.out_features)
            self.gemm("linear_backward_gemm", size, [dy, w.words, w.row_scales, dx])
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
        if lora.a.dtype != "f32":
            raise DeviceError(f"linear_backward: expected adapters in f32, found {lora.a.dtype}")
        rank, aligned = lora.rank, {"aligned": lora.rank % 4 == 0}
        parts, drop, state = (rank, *part_ends(w.parts)), _dropout_params(dropout), _dropout_state(dropout)
        dropping = {**aligned, "dropout": dropout is not None}
        self.gemm(
            "lora_down_grad_gemm",
            (tokens, width, w.out_features),
            [dy, lora.b, rows.slot, rows.multiplier, lora.scale, lora.down_grad],
            params=parts,
            variant=aligned,
            part=(tokens, rank),
        )
        if grad is not None:
            self.gemm(
                "lora_grad_b_gemm",
                (w.out_features, width, tokens),
                [dy, lora.down, rows.multiplier, lora.scale, grad.b],
                params=parts,
                variant=aligned,
                part=(w.out_features, rank),
            )
            size = (width, w.in_features, tokens)
            self.gemm("lora_grad_a_gemm", size, [lora.down_grad, x, grad.a, *state], params=drop, variant=dropping)
        if dx is not None:
            size = (tokens, w.in_features, width)
            buffers = [lora.down_grad, lora.a, rows.slot, dx, *state]
            self.gemm("lora_dx_gemm", size, buffers, params=drop, variant=dropping)

    def logits(self, x: Buffer, table: Table, out: Buffer) -> None:
        """See Backend.logits: a dispatch for each shard of the table."""
        own = _own_table(table)
        rows = x.shape[0]
        if rows <= FEW_ROWS:
            self.logits_few(x, own, out)
            return
        for shard in own.shards:
            self.gemm(
                "logits_gemm",
                (rows, shard.rows, own.columns),
                [x, shard.buffer, out],
                params=(False, own.columns, 0, own.rows, shard.first_row),
                variant={"format": own.dtype, "backward": False, "aligned": _aligned(own, shard)},
            )

    def logits_backward(self, dlogits: Buffer, table: Table, dx: Buffer) -> None:
        """See Backend.logits_backward: a product for each shard of the table; the first writes, the others add."""
        own = _own_table(table)
        for i, shard in enumerate(own.shards):
            self.gemm(
                "logits_gemm",
                (dlogits.shape[0], own.columns, shard.rows),
                [dlogits, shard.buffer, dx],
                params=(i > 0, own.rows, shard.first_row, own.columns, 0),
                variant={"format": own.dtype, "backward": True, "aligned": _aligned(own, shard)},
            )


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


def _aligned(table: WebGPUTable, shard: TableShard) -> bool:
    """Whether a row of logits, from the shard's first on, can be read and written in fours."""
    return table.rows % 4 == 0 and shard.first_row % 4 == 0


def _own_table(table: Table) -> WebGPUTable:
    if not isinstance(table, WebGPUTable):
        raise DeviceError(f"a table of another backend ({type(table).__name__}) was given to WebGPU")
    return table
