"""The ternary linear with LoRA beside it, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import Buffer, Dropout, LoRA, LoRAGrad, Rows, TernaryWeight
from tritune.errors import DeviceError
from tritune.ops.dropout import dropout_threshold

from .buffers import own_buffer
from .core import CpuCore
from .ternary import CpuTernary, own_weight, pack


class LinearOps(CpuCore):
    """See Backend for each op's contract, native/linear.h for what is called."""

    def pack_ternary(self, parts: Sequence[tuple[NDArray[np.int8], float]]) -> TernaryWeight:
        """See Backend.pack_ternary. It happens now, also while a program is being recorded."""
        return pack(self, self._pool, parts)

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
        """See Backend.linear. The adapters may be f16."""
        w = own_weight(weight)
        tokens, floats, dropped = y.shape[0], codes is None, _drops(lora, dropout)
        self.expect("linear", "y", y, "f32", tokens, w.out_features)
        if codes is not None:
            if scales is None:
                raise DeviceError("linear: codes were given without their scales")
            self.expect("linear", "codes", codes, "i8", tokens, w.in_features)
            self.expect("linear", "scales", scales, "f32", tokens)
        if floats or lora is not None:
            self.expect("linear", "x", x, "f32", tokens, w.in_features)
        width = 0 if lora is None else len(w.parts) * lora.rank
        adapters = self._adapters("linear", w, tokens, rows, lora)
        half = lora is not None and own_buffer(lora.a).dtype == "f16"
        size = self.native.linear_scratch(self._pool, tokens, w.out_features, w.in_features, width, floats, dropped)
        self.call(
            "linear",
            *(x, codes, None if floats else scales, *_matrix(w, tokens), y, accumulate),
            *(0 if lora is None else lora.rank, half, *adapters),
            *(None if lora is None else lora.down, *_dropout(dropout if dropped else None)),
            self.scratch("linear", size, "i8"),
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
        """See Backend.linear_backward."""
        w = own_weight(weight)
        tokens = dy.shape[0]
        self.expect("linear_backward", "dy", dy, "f32", tokens, w.out_features)
        if dx is not None:
            self.expect("linear_backward", "dx", dx, "f32", tokens, w.in_features)
        if lora is None or (dx is None and grad is None):
            lora = grad = None
        self._check_gradients(x, w, tokens, lora, grad)
        width = 0 if lora is None else len(w.parts) * lora.rank
        adapters = self._adapters("linear_backward", w, tokens, rows, lora)
        size = self.native.linear_backward_scratch(self._pool, tokens, w.out_features, w.in_features, width)
        self.call(
            "linear_backward",
            *(dy, x, *_matrix(w, tokens), dx, 0 if lora is None else lora.rank, *adapters),
            *((None, None) if lora is None else (lora.down, lora.down_grad)),
            *((None, None) if grad is None else (grad.a, grad.b)),
            *_dropout(dropout if _drops(lora, dropout) else None),
            self.scratch("linear", size, "i8"),
        )

    def _adapters(self, op: str, w: CpuTernary, tokens: int, rows: Rows, lora: LoRA | None) -> tuple[object, ...]:
        """a, b, scale, slot, multiplier: checked, as the native functions take them."""
        if lora is None:
            return (None,) * 5
        entries, width = lora.a.shape[0], len(w.parts) * lora.rank
        if lora.rank < 1:
            raise DeviceError(f"{op}: an adapter's rank is at least 1, found {lora.rank}")
        dtype = "f16" if own_buffer(lora.a).dtype == "f16" else "f32"
        self.expect(op, "LoRA.a", lora.a, dtype, entries, width, w.in_features)
        self.expect(op, "LoRA.b", lora.b, dtype, entries, w.out_features, lora.rank)
        self.expect(op, "LoRA.scale", lora.scale, "f32", entries, len(w.parts))
        self.expect(op, "LoRA.down", lora.down, "f32", tokens, width)
        self.expect(op, "Rows.slot", rows.slot, "i32", tokens)
        self.expect(op, "Rows.multiplier", rows.multiplier, "f32", tokens)
        return lora.a, lora.b, lora.scale, rows.slot, rows.multiplier

    def _check_gradients(self, x: Buffer, w: CpuTernary, tokens: int, lora: LoRA | None, grad: LoRAGrad | None) -> None:
        if lora is None:
            return
        width = len(w.parts) * lora.rank
        if own_buffer(lora.a).dtype != "f32":
            raise DeviceError("linear_backward: gradients are for adapters in f32, found f16")
        if lora.down_grad is None:
            raise DeviceError("linear_backward: LoRA.down_grad is missing")
        self.expect("linear_backward", "LoRA.down_grad", lora.down_grad, "f32", tokens, width)
        if grad is None:
            return
        if lora.a.shape[0] != 1:
            raise DeviceError(f"linear_backward: gradients are for a pool of one adapter, found {lora.a.shape[0]}")
        self.expect("linear_backward", "x", x, "f32", tokens, w.in_features)
        self.expect("linear_backward", "LoRAGrad.a", grad.a, "f32", 1, width, w.in_features)
        self.expect("linear_backward", "LoRAGrad.b", grad.b, "f32", 1, w.out_features, lora.rank)


def _matrix(w: CpuTernary, tokens: int) -> tuple[object, ...]:
    return w.lines, w.row_scale, w.starts, len(w.parts), tokens, w.out_features, w.in_features


def _drops(lora: LoRA | None, dropout: Dropout | None) -> bool:
    return lora is not None and dropout is not None and dropout.rate > 0


def _dropout(dropout: Dropout | None) -> tuple[object, ...]:
    """state, module, threshold, keep."""
    if dropout is None:
        return None, 0, 0, 1.0
    return dropout.state, dropout.module, dropout_threshold(dropout.rate), 1.0 / (1.0 - dropout.rate)
