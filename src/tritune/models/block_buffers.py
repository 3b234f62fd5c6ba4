"""The buffers that one block's forward writes; training keeps them for backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tritune.backends.base import Backend, Buffer, Dropout, LoRA, LoRAGrad
from tritune.models.config import ModelConfig
from tritune.models.linears import linear_groups


class Adapters(Protocol):
    """The adapters that a forward applies, by layer and group: lora.AdapterPool."""

    @property
    def rank(self) -> int: ...

    def adapts(self, layer: int, group: str) -> bool: ...

    def lora(self, layer: int, group: str, down: Buffer, down_grad: Buffer | None = None) -> LoRA | None: ...

    def dropout(self, layer: int, group: str) -> Dropout | None: ...

    def grad(self, flat_grad: Buffer, layer: int, group: str) -> LoRAGrad | None: ...


@dataclass(frozen=True)
class WithoutDropout:
    """The same adapters, of whose inputs nothing is dropped: for a loss that is measured and not trained on."""

    adapters: Adapters

    @property
    def rank(self) -> int:
        """See Adapters."""
        return self.adapters.rank

    def adapts(self, layer: int, group: str) -> bool:
        """See Adapters."""
        return self.adapters.adapts(layer, group)

    def lora(self, layer: int, group: str, down: Buffer, down_grad: Buffer | None = None) -> LoRA | None:
        """See Adapters."""
        return self.adapters.lora(layer, group, down, down_grad)

    def dropout(self, layer: int, group: str) -> Dropout | None:
        """None."""
        return None

    def grad(self, flat_grad: Buffer, layer: int, group: str) -> LoRAGrad | None:
        """See Adapters."""
        return self.adapters.grad(flat_grad, layer, group)


@dataclass(frozen=True)
class QuantBuffers:
    """Int8 codes and scales of whatever is quantised at the moment; one set serves all linears of all layers."""

    codes: Buffer  # i8 [T * widest input]
    scales: Buffer  # f32 [T]

    @classmethod
    def make(cls, backend: Backend, config: ModelConfig, rows: int) -> QuantBuffers:
        """Room for ``rows`` rows of the model's widest linear input."""
        widest = max(config.hidden_size, config.q_size, config.intermediate_size)
        codes, scales = backend.empty_together(((rows * widest,), "i8"), ((rows,), "f32"))
        mark_transient(codes, scales)
        return cls(codes, scales)


@dataclass(frozen=True)
class BlockBuffers:
    """What a block computes on the way. ``lse`` and ``mid`` are None in inference, the normed ones where nobody reads
    them."""

    normed: Buffer | None  # f32 [T, D], input of q, k, v
    qkv: Buffer  # f32 [T, (H + 2G) * d]
    q: Buffer | None  # f32 [T, H * d], rotated; inference only (training rotates qkv in place)
    o: Buffer  # f32 [T, H * d]
    lse: Buffer | None  # f32 [T, H]
    o_normed: Buffer | None  # f32 [T, H * d], input of o
    mid: Buffer | None  # f32 [T, D], hidden state between attention and feed-forward
    mid_normed: Buffer | None  # f32 [T, D], input of gate and up
    gate_up: Buffer  # f32 [T, 2F]
    z: Buffer | None  # f32 [T, F], input of down
    down: Mapping[str, Buffer]  # f32 [T, P * r] of each group: A x

    @classmethod
    def make(
        cls,
        backend: Backend,
        config: ModelConfig,
        rows: int,
        rank: int | None,
        *,
        floats: bool,
        training: bool,
        inputs_of: BlockBuffers | None = None,
    ) -> BlockBuffers:
        """Buffers for ``rows`` rows. rank: of the adapters (None: no adapters); floats: the rounding is off.

        inputs_of: a block with which to share the linears' normed inputs.
        """

        def wanted(width: int, condition: bool) -> Buffer | None:
            return backend.empty((rows, width)) if condition else None

        keep = (floats or rank is not None) and inputs_of is None
        hidden, q_size = config.hidden_size, config.q_size
        groups = linear_groups(config) if rank is not None else ()
        block = cls(
            normed=wanted(hidden, keep),
            qkv=backend.empty((rows, q_size + 2 * config.kv_size)),
            q=wanted(q_size, not training),
            o=backend.empty((rows, q_size)),
            lse=wanted(config.num_heads, training),
            o_normed=wanted(q_size, keep and config.sub_norms),
            mid=wanted(hidden, training),
            mid_normed=wanted(hidden, keep),
            gate_up=backend.empty((rows, 2 * config.intermediate_size)),
            z=wanted(config.intermediate_size, keep),
            down={group.name: backend.empty((rows, len(group.parts) * (rank or 0))) for group in groups},
        )
        if not training:
            inputs = (block.normed, block.o_normed, block.mid_normed, block.z)
            mark_transient(*inputs, block.q, block.gate_up, *block.down.values())
            if config.sub_norms:  # else what quantises it and the linear both read it
                mark_transient(block.o)
        if inputs_of is None:
            return block
        other = inputs_of
        return replace(block, normed=other.normed, o_normed=other.o_normed, mid_normed=other.mid_normed, z=other.z)

    def bucket(self, count: int) -> BlockBuffers:
        """The first ``count`` rows of every buffer."""

        def first(buffer: Buffer | None) -> Buffer | None:
            return None if buffer is None else first_rows(buffer, count)

        return BlockBuffers(
            normed=first(self.normed),
            qkv=first_rows(self.qkv, count),
            q=first(self.q),
            o=first_rows(self.o, count),
            lse=first(self.lse),
            o_normed=first(self.o_normed),
            mid=first(self.mid),
            mid_normed=first(self.mid_normed),
            gate_up=first_rows(self.gate_up, count),
            z=first(self.z),
            down={name: first_rows(buffer, count) for name, buffer in self.down.items()},
        )


def mark_transient(*buffers: Buffer | None) -> None:
    """See Buffer.transient."""
    for buffer in buffers:
        if buffer is not None:
            buffer.transient = True


def first_rows(buffer: Buffer, count: int) -> Buffer:
    """A view of the first ``count`` rows."""
    return buffer.view(0, (count, *buffer.shape[1:]))
