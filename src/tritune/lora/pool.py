"""AdapterPool: adapters resident on a device, chosen row by row through a slot.

Slot 0 of a row means no adapter, slot s the pool's entry s - 1. A pool of one entry made for an adapter has exactly the
layout of the adapter's flat array, so training works on it in place.

A pool for inference may hold its parameters in f16, half the bytes that each token reads: they differ from the
adapter's by 2^-11 of each at most, or 2^-25 where that is more.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tritune.backends.base import Backend, Buffer, Dropout, DType, LoRA, LoRAGrad
from tritune.errors import AdapterError
from tritune.lora.adapter import Adapter
from tritune.lora.layout import ALIGNMENT, GroupKey, make_layout
from tritune.lora.types import Floats
from tritune.models.config import ModelConfig
from tritune.models.linears import GROUP_OF

LARGEST_F16 = float(np.finfo(np.float16).max)


class AdapterPool:
    """Room on a device for ``entries`` adapters of at most ``rank`` that adapt at most the groups ``keys``."""

    def __init__(
        self,
        backend: Backend,
        model: ModelConfig,
        keys: Iterable[GroupKey],
        rank: int,
        entries: int = 1,
        dtype: DType = "f32",
    ) -> None:
        self.backend = backend
        self.model_config = model
        self.layout = make_layout(model, keys, rank, entries)
        self.flat = backend.empty((self.layout.size,), dtype)
        stride = -(-entries * max(len(g.parts) for g in self.layout.groups.values()) // ALIGNMENT) * ALIGNMENT
        self._scales = backend.empty((stride * max(1, len(self.layout.a_offsets)),))
        self._dropout: tuple[float, Buffer] | None = None
        self._scale_offsets = {key: i * stride for i, key in enumerate(self.layout.a_offsets)}

    @classmethod
    def for_adapters(cls, backend: Backend, adapters: list[Adapter], *, rounded: bool = False) -> AdapterPool:
        """A pool that holds the given adapters (of one model), in order.

        rounded: in f16, where the backend gains by it and no value is too large for it.
        """
        keys = {key for adapter in adapters for key in adapter.layout.a_offsets}
        rank = max(adapter.layout.rank for adapter in adapters)
        fit = all(_fits_f16(adapter.parameters) for adapter in adapters)
        dtype = "f16" if rounded and backend.f16_adapters and fit else "f32"
        pool = cls(backend, adapters[0].model_config, keys, rank, len(adapters), dtype)
        pool.load(adapters)
        return pool

    def load(self, adapters: list[Adapter]) -> None:
        """Put adapters into entries 0, 1, …; the pool's other entries become zero.

        Raises AdapterError if one does not fit.
        """
        layout = self.layout
        flat: Floats = np.zeros(layout.size, np.float32)
        scales: Floats = np.zeros(self._scales.size, np.float32)
        for entry, adapter in enumerate(adapters):
            self._check(adapter, entry)
            for target in adapter.targets:
                at = (target.layer, target.projection, target.rank)
                layout.a_view(flat, *at, entry)[...] = adapter.layout.a_view(adapter.parameters, *at)
                layout.b_view(flat, *at, entry)[...] = adapter.layout.b_view(adapter.parameters, *at)
                group = layout.groups[GROUP_OF[target.projection]]
                part = group.projections.index(target.projection)
                offset = self._scale_offsets[target.layer, group.name]
                scales[offset + entry * len(group.parts) + part] = target.scale
        if self.flat.dtype == "f16" and not _fits_f16(flat):
            raise AdapterError("an adapter with values beyond f16 in a pool of f16")
        self.backend.write(self.flat, flat)
        self.backend.write(self._scales, scales)

    def _check(self, adapter: Adapter, entry: int) -> None:
        if entry >= self.layout.entries:
            raise AdapterError(f"the pool has room for {self.layout.entries} adapters")
        if adapter.layout.groups != self.layout.groups:
            raise AdapterError("an adapter made for another model's sizes in this model's pool")
        if adapter.layout.rank > self.layout.rank:
            raise AdapterError(f"an adapter of rank {adapter.layout.rank} in a pool of rank {self.layout.rank}")
        missing = set(adapter.layout.a_offsets) - set(self.layout.a_offsets)
        if missing:
            raise AdapterError(f"an adapter of layer and group {min(missing)}, which the pool was not made for")

    def read(self) -> Floats:
        """The parameters as they are on the device now."""
        return self.backend.read(self.flat).astype(np.float32, copy=False)

    @property
    def rank(self) -> int:
        """The rank that all entries are padded to."""
        return self.layout.rank

    def adapts(self, layer: int, group: str) -> bool:
        """Whether any adapter of the pool may touch the group."""
        return (layer, group) in self.layout.a_offsets

    def lora(self, layer: int, group: str, down: Buffer, down_grad: Buffer | None = None) -> LoRA | None:
        """What ``linear`` needs for the group, None if no adapter touches it; down [T, P * rank] is scratch."""
        key = (layer, group)
        if key not in self.layout.a_offsets:
            return None
        parts = len(self.layout.groups[group].parts)
        return LoRA(
            a=self.flat.view(self.layout.a_offsets[key], self.layout.a_shape(group)),
            b=self.flat.view(self.layout.b_offsets[key], self.layout.b_shape(group)),
            scale=self._scales.view(self._scale_offsets[key], (self.layout.entries, parts)),
            rank=self.layout.rank,
            down=down,
            down_grad=down_grad,
        )

    def set_dropout(self, rate: float, state: Buffer) -> None:
        """Drop elements of the LoRA inputs from now on; state u32 [2] holds (seed, step). For training."""
        self._dropout = (rate, state) if rate > 0 else None

    def dropout(self, layer: int, group: str) -> Dropout | None:
        """The dropout of a group's LoRA input, if there is any."""
        if self._dropout is None:
            return None
        rate, state = self._dropout
        names = list(self.layout.groups)
        return Dropout(rate, layer * len(names) + names.index(group), state)

    def grad(self, flat_grad: Buffer, layer: int, group: str) -> LoRAGrad | None:
        """The group's pieces of a gradient laid out like the pool's flat buffer."""
        key = (layer, group)
        if key not in self.layout.a_offsets:
            return None
        return LoRAGrad(
            a=flat_grad.view(self.layout.a_offsets[key], self.layout.a_shape(group)),
            b=flat_grad.view(self.layout.b_offsets[key], self.layout.b_shape(group)),
        )


def _fits_f16(values: Floats) -> bool:
    return bool(np.abs(values).max(initial=0) <= LARGEST_F16)
