"""The ternary linear with LoRA, and the head's products, on the NumPy backend."""

from __future__ import annotations

from tritune.backends.base import Buffer, Dropout, LoRA, LoRAGrad, Rows, Table, TernaryWeight
from tritune.backends.numpy.buffers import NumpyTable, NumpyTernary
from tritune.backends.numpy.calls import Calls, array, optional
from tritune.ops.arrays import FloatArray
from tritune.ops.dropout import dropout as drop
from tritune.ops.linear import lora_down, lora_up, ternary_product
from tritune.ops.linear_backward import lora_a_grad, lora_b_grad, lora_down_grad, lora_dx, ternary_backward
from tritune.ops.logits import logits, logits_backward


def _dropped(x: FloatArray, dropout: Dropout | None) -> FloatArray:
    if dropout is None or dropout.rate == 0:
        return x
    seed, step = (int(word) for word in array(dropout.state))
    return drop(x, dropout.rate, dropout.module, seed, step)


class LinearOps(Calls):
    """Matrix products."""

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
        assert isinstance(weight, NumpyTernary)

        def call() -> None:
            out = ternary_product(array(x), optional(codes), optional(scales), weight.dense(), weight.row_scale)
            if lora is not None:
                slot, multiplier = array(rows.slot), array(rows.multiplier)
                down = array(lora.down)
                down[...] = lora_down(_dropped(array(x), dropout), array(lora.a), slot)
                out += lora_up(down, array(lora.b), array(lora.scale), slot, multiplier, weight.parts)
            array(y)[...] = array(y) + out if accumulate else out

        self._do(call)

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
        assert isinstance(weight, NumpyTernary)

        def call() -> None:
            upstream = array(dy)
            total = None if dx is None else ternary_backward(upstream, weight.dense(), weight.row_scale)
            if lora is not None:
                slot, multiplier = array(rows.slot), array(rows.multiplier)
                scale, b = array(lora.scale), array(lora.b)
                down_grad = lora_down_grad(upstream, b, scale, slot, multiplier, weight.parts)
                if grad is not None:
                    down = array(lora.down)
                    array(grad.b)[0] += lora_b_grad(upstream, down, scale, slot, multiplier, weight.parts)
                    array(grad.a)[0] += lora_a_grad(down_grad, _dropped(array(x), dropout))
                if total is not None:
                    total += _dropped(lora_dx(down_grad, array(lora.a), slot), dropout)
            if dx is not None:
                array(dx)[...] = total

        self._do(call)

    def logits(self, x: Buffer, table: Table, out: Buffer) -> None:
        assert isinstance(table, NumpyTable)
        rows, scales = table.array, table.scales

        def call() -> None:
            array(out)[...] = logits(array(x), rows, scales)

        self._do(call)

    def logits_backward(self, dlogits: Buffer, table: Table, dx: Buffer) -> None:
        assert isinstance(table, NumpyTable)
        rows, scales = table.array, table.scales

        def call() -> None:
            array(dx)[...] = logits_backward(array(dlogits), rows, scales)

        self._do(call)
