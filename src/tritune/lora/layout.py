"""Where each matrix of an adapter lies in its flat buffer: first every A, then every B, each group aligned.

A pool of E adapters has the same layout with E copies of each matrix side by side, so an adapter's own buffer is a pool
of one, and a group's A [E, P * rank, K] and B [E, N, rank] are single ranges that a kernel can bind. Ranks are padded
with zeros to the largest; padding has zero gradient and stays zero. A projection of a group that is not adapted is all
padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tritune.lora.types import Floats
from tritune.models.config import ModelConfig
from tritune.models.linears import GROUP_OF, LinearGroup, linear_groups

ALIGNMENT = 64
"""Elements; 256 bytes, WebGPU's largest binding alignment."""

GroupKey = tuple[int, str]
"""(layer, name of the group)."""


@dataclass(frozen=True)
class Layout:
    """Offsets, in elements, of the matrices of a pool of ``entries`` adapters of ``rank``."""

    rank: int
    entries: int
    groups: Mapping[str, LinearGroup]
    a_offsets: Mapping[GroupKey, int]
    b_offsets: Mapping[GroupKey, int]
    size: int

    @property
    def b_start(self) -> int:
        """Where the first B begins: every A lies before it."""
        return min(self.b_offsets.values())

    def a_shape(self, group: str) -> tuple[int, int, int]:
        """[E, P * rank, K]."""
        spec = self.groups[group]
        return (self.entries, len(spec.parts) * self.rank, spec.in_features)

    def b_shape(self, group: str) -> tuple[int, int, int]:
        """[E, N, rank]."""
        return (self.entries, self.groups[group].out_features, self.rank)

    def a_view(self, flat: Floats, layer: int, projection: str, rank: int, entry: int = 0) -> Floats:
        """A [rank, in] of one projection, a view of the flat array."""
        group = GROUP_OF[projection]
        part = self.groups[group].projections.index(projection)
        matrix = _slice(flat, self.a_offsets[layer, group], self.a_shape(group))[entry]
        return matrix[part * self.rank : part * self.rank + rank]

    def b_view(self, flat: Floats, layer: int, projection: str, rank: int, entry: int = 0) -> Floats:
        """B [out, rank] of one projection, a view of the flat array."""
        group = GROUP_OF[projection]
        spec = self.groups[group]
        part = spec.projections.index(projection)
        start = sum(spec.parts[:part])
        matrix = _slice(flat, self.b_offsets[layer, group], self.b_shape(group))[entry]
        return matrix[start : start + spec.parts[part], :rank]


def _slice(flat: Floats, offset: int, shape: tuple[int, ...]) -> Floats:
    return flat[offset : offset + int(np.prod(shape))].reshape(shape)


def make_layout(model: ModelConfig, keys: Iterable[GroupKey], rank: int, entries: int = 1) -> Layout:
    """The layout of a pool that adapts the groups ``keys`` of a model."""
    groups = {group.name: group for group in linear_groups(model)}
    ordered = sorted(set(keys), key=lambda key: (key[0], list(groups).index(key[1])))
    offset = 0
    a_offsets: dict[GroupKey, int] = {}
    b_offsets: dict[GroupKey, int] = {}
    for key in ordered:
        a_offsets[key] = offset
        group = groups[key[1]]
        offset += _aligned(entries * len(group.parts) * rank * group.in_features)
    for key in ordered:
        b_offsets[key] = offset
        offset += _aligned(entries * groups[key[1]].out_features * rank)
    return Layout(rank, entries, groups, a_offsets, b_offsets, offset)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
