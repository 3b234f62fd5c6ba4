"""The size of the corrections s·B·A, and how far two adapters' corrections lie apart; no s·B·A is ever made whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tritune.errors import AdapterError
from tritune.lora.adapter import Adapter
from tritune.lora.peft_config import Module
from tritune.lora.types import Weight
from tritune.models.linears import PROJECTIONS, module_path


@dataclass(frozen=True)
class Distance:
    """Of one module: the norms of both corrections (0 where an adapter has none) and of their difference."""

    norm: float
    other_norm: float
    difference: float

    @property
    def relative(self) -> float:
        """The difference over the larger norm: 0 for equal corrections, 1 where only one adapter has one, at most 2."""
        larger = max(self.norm, self.other_norm)
        return self.difference / larger if larger else 0.0


def delta_norm(terms: Sequence[tuple[Weight, float]]) -> float:
    """The Frobenius norm of Σ factor·s·B·A, which is √Σ (BᵀB ∘ AAᵀ) with both factors side by side.

    In float64: what is left of a difference of equal corrections is about 1e-8 of their norm. (QR would be exact, and
    with threads on a busy machine hundreds of times slower.)
    """
    a = np.concatenate([weight.a.astype(np.float64) * (factor * weight.scale) for weight, factor in terms], axis=0)
    b = np.concatenate([weight.b.astype(np.float64) for weight, _ in terms], axis=1)
    return float(np.sqrt(max(0.0, ((b.T @ b) * (a @ a.T)).sum())))


def weights_of(adapter: Adapter) -> dict[Module, Weight]:
    """The corrections by module, in the model's order."""
    return {
        (layer, name): pieces.projections[name]
        for layer, pieces in enumerate(adapter.layers)
        for name in PROJECTIONS
        if name in pieces.projections
    }


def delta_norms(adapter: Adapter) -> dict[Module, float]:
    """The norm of each module's correction."""
    return {module: delta_norm([(weight, 1.0)]) for module, weight in weights_of(adapter).items()}


def distances(adapter: Adapter, other: Adapter) -> dict[Module, Distance]:
    """How far the corrections of two adapters of one model lie apart, in every module that either adapts.

    Raises AdapterError when a module of both has other sizes in one.
    """
    mine, theirs = weights_of(adapter), weights_of(other)
    for module in mine.keys() & theirs.keys():
        one, two = ([weight.out_dim, weight.in_dim] for weight in (mine[module], theirs[module]))
        if one != two:
            raise AdapterError(
                f"adapters of different models: {module_path(*module)} is {one} in one, {two} in the other"
            )
    found: dict[Module, Distance] = {}
    for module in sorted(mine.keys() | theirs.keys(), key=lambda m: (m[0], list(PROJECTIONS).index(m[1]))):
        left = [(mine[module], 1.0)] if module in mine else []
        right = [(theirs[module], -1.0)] if module in theirs else []
        found[module] = Distance(
            delta_norm(left) if left else 0.0, delta_norm(right) if right else 0.0, delta_norm(left + right)
        )
    return found
