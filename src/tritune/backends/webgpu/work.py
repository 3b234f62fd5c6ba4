"""How much an op does, told by its arguments: for profiles, and to estimate how long a submit will run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tritune.backends.base import Buffer, LoRA, LoRAGrad, Rows, Table, TernaryWeight

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Work:
    """Operations of an op (two a multiply-add), and bytes that it moves if they are not those of its buffers.

    exact: False where they depend on the contents of a buffer, and these are the most that there can be.
    """

    flops: float = 0.0
    nbytes: float | None = None
    exact: bool = True

    def __add__(self, other: Work) -> Work:
        """Of two ops in the same dispatches."""
        nbytes = self.nbytes + other.nbytes if self.nbytes is not None and other.nbytes is not None else None
        return Work(self.flops + other.flops, nbytes, self.exact and other.exact)


@dataclass
class RecordedOp:
    """An op of a program, and which of the program's dispatches are its own."""

    name: str
    work: Work
    numbers: list[int] = field(default_factory=list[int])


def _linear(x: Buffer, weight: TernaryWeight, lora: LoRA | None, y: Buffer, **_: Any) -> Work:
    rows = y.shape[0]
    products = weight.out_features * weight.in_features
    if lora is not None:
        products += lora.rank * (len(weight.parts) * weight.in_features + weight.out_features)
    return Work(2.0 * rows * products)


def _linear_backward(
    dy: Buffer, weight: TernaryWeight, dx: Buffer | None, lora: LoRA | None, grad: LoRAGrad | None, **_: Any
) -> Work:
    rows, inputs, outputs = dy.shape[0], weight.in_features, weight.out_features
    products = 0 if dx is None else outputs * inputs
    if lora is not None:
        down, up = len(weight.parts) * lora.rank * inputs, lora.rank * outputs
        products += (up if dx is not None or grad is not None else 0) + (0 if dx is None else down)
        products += 0 if grad is None else down + up
    return Work(2.0 * rows * products)


def _logits(table: Table, **buffers: Any) -> Work:
    rows: int = next(buffers[name].shape[0] for name in ("x", "dlogits") if name in buffers)
    return Work(2.0 * rows * table.rows * table.columns)


def _attention(matrices: float) -> Callable[..., Work]:
    """Products of one query with its keys (or values), over causal rows, ``matrices`` times."""

    def work(qkv: Buffer, rows: Rows, heads: int, head_dim: int, **_: Any) -> Work:
        count = qkv.shape[0]
        pairs = count * (count + 1) / 2
        return Work(matrices * 2.0 * pairs * heads * head_dim, exact=rows.q_start.size <= 2)

    return work


def _paged_attention(q: Buffer, k_cache: Buffer, rows: Rows, heads: int, head_dim: int, **_: Any) -> Work:
    assert rows.block_tables is not None
    positions = rows.block_tables.shape[1] * k_cache.shape[2]
    read = rows.block_tables.shape[0] * positions * k_cache.shape[1] * head_dim * (2 if k_cache.dtype == "f16" else 4)
    return Work(2 * 2.0 * q.shape[0] * positions * heads * head_dim, 2.0 * read, exact=False)


def _buffers(**_: Any) -> Work:
    """No products to speak of; each buffer is read or written once."""
    return Work()


def _moved(*names: str) -> Callable[..., Work]:
    """The bytes of these arguments alone: of the others, a few rows are read."""

    def work(**arguments: Any) -> Work:
        return Work(0.0, sum(_bytes(arguments[name]) for name in names))

    return work


def _bytes(buffer: Any) -> float:
    return float(buffer.nbytes)


OPS: Mapping[str, Callable[..., Work]] = {
    "zero": _buffers,
    "embed": _moved("x", "x"),
    "rms_norm_quant": _buffers,
    "rms_norm_backward": _buffers,
    "linear": _linear,
    "linear_backward": _linear_backward,
    "rope": _moved("qkv", "qkv"),
    "rope_backward": _moved("dqkv", "dqkv"),
    "rope_cache": _moved("qkv", "qkv"),
    "paged_attention": _paged_attention,
    "causal_attention": _attention(2),
    "causal_attention_backward": _attention(5),
    "glu_norm_quant": _buffers,
    "glu_backward": _buffers,
    "gather_rows": _moved("out", "out"),
    "scatter_rows": _moved("out", "x"),
    "next_rows": _buffers,
    "logits": _logits,
    "sampling_logits": _logits,
    "logits_backward": _logits,
    "cross_entropy": _buffers,
    "add_loss": _buffers,
    "sample": _buffers,
    "global_norm": _buffers,
    "adamw": _buffers,
}
"""The ops of a backend, and their work from their arguments by name."""


def noted_ops(backend: Class) -> Class:
    """Make the ops of a backend's class note in the program that is being recorded where they begin and end."""
    for name, work in OPS.items():
        setattr(backend, name, _noted(name, getattr(backend, name), work))
    return backend


def _noted(name: str, method: Callable[..., None], work: Callable[..., Work]) -> Callable[..., None]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def op(self: Any, *args: Any, **kwargs: Any) -> None:
        program = self.recording
        if program is None or program.op is not None:
            method(self, *args, **kwargs)
            return
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        with program.noting(name, work(**bound.arguments)):
            method(self, *args, **kwargs)

    return op
