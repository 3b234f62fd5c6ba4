"""The adapter's types: small dataclasses over views of flat float32 arrays.

An adapter's parameters, its gradient and its Adam moments are each one flat array with the same layout
(lora/layout.py), so the optimizer is one pass, a checkpoint one tensor; these views give the pieces their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Weight:
    """The correction of one projection: ``scale * b @ (a @ x)``."""

    a: Floats  # [rank, in_dim]
    b: Floats  # [out_dim, rank]
    in_dim: int
    out_dim: int
    rank: int
    scale: float


@dataclass(frozen=True)
class WeightGrad:
    """The gradient of a Weight."""

    da: Floats  # [rank, in_dim]
    db: Floats  # [out_dim, rank]


@dataclass(frozen=True)
class AdamState:
    """First and second moments of a Weight's a and b."""

    m_a: Floats
    m_b: Floats
    v_a: Floats
    v_b: Floats


@dataclass(frozen=True)
class LayerAdapter:
    """The adapted projections of one layer, by name."""

    projections: Mapping[str, Weight]


@dataclass(frozen=True)
class LayerAdapterGrad:
    """The gradients of one layer's projections."""

    projections: Mapping[str, WeightGrad]


@dataclass(frozen=True)
class LayerAdapterAdamState:
    """The moments of one layer's projections."""

    projections: Mapping[str, AdamState]


@dataclass(frozen=True)
class AdapterGrad:
    """The gradient of an adapter; ``flat`` holds all of it."""

    flat: Floats
    layers: tuple[LayerAdapterGrad, ...]


@dataclass(frozen=True)
class AdapterAdamState:
    """The moments of an adapter, and the number of steps taken (for the bias correction)."""

    m: Floats
    v: Floats
    layers: tuple[LayerAdapterAdamState, ...]
    step: int
