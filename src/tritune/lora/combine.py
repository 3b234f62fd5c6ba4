"""Several adapters made one, under the names of peft's add_weighted_adapter (peft/tuners/lora/model.py, 0.21).

cat     exact: Σ w·s·B·A, the ranks side by side
svd     the matrix of rank ``svd_rank`` that is nearest to that sum
linear  A and B summed apart, each with √|w·s|: rough, but the rank stays
ties    as linear, of each tensor's largest values only and where the signs agree (TIES-merging: Yadav et al., 2023)

With one adapter there is nothing to merge, and as in peft every way is linear (which is exact then).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tritune.errors import AdapterError, ConfigError
from tritune.formats.fields import short
from tritune.lora.adapter import Adapter
from tritune.lora.config import Target, is_finite_number
from tritune.lora.peft_config import Module
from tritune.lora.tensors import PlainSettings, lora_config
from tritune.lora.types import Floats, Weight
from tritune.models.linears import PROJECTIONS, module_path

CombinationType = Literal["cat", "linear", "svd", "ties"]
COMBINATION_TYPES: tuple[CombinationType, ...] = get_args(CombinationType)

Weighted = Sequence[tuple[Adapter, float]]
"""Adapters and what each one's correction is multiplied by."""
AdapterLike = Adapter | Weighted
"""What a model takes as its adapter: one, or several with weights."""


Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class _Term:
    """One adapter's part in one module: factor * b @ a, the factor its weight times its scale."""

    a: Floats
    b: Floats
    factor: float


def as_one(adapter: AdapterLike | None) -> Adapter | None:
    """The one adapter that computes the weighted sum of the corrections, exactly. Raises AdapterError, ConfigError."""
    return adapter if adapter is None or isinstance(adapter, Adapter) else combine_adapters(adapter)


def combine_adapters(
    adapters: Weighted, combination_type: str = "cat", *, svd_rank: int | None = None, density: float | None = None
) -> Adapter:
    """One adapter, of scale 1, made of several with weights (which may be negative).

    svd_rank: of the result of svd; None means the largest rank of the adapters. density: the share of each tensor's
    values that ties keeps, in (0, 1]. Raises AdapterError for adapters of other models, and for several ranks in one
    module (linear, ties); ConfigError for a setting.
    """
    _check(adapters, combination_type, svd_rank, density)
    modules = _terms(adapters)
    if len(adapters) == 1:
        combination_type = "linear"
    if combination_type == "cat":
        factors = {module: _cat(terms) for module, terms in modules.items()}
    elif combination_type == "svd":
        rank = svd_rank or max(target.rank for adapter, _ in adapters for target in adapter.targets)
        factors = {module: _svd(terms, rank) for module, terms in modules.items()}
    else:
        keep = density if combination_type == "ties" else None
        factors = {module: _summed(module, terms, keep) for module, terms in modules.items()}
    return _build(factors, adapters)


def _check(adapters: Weighted, combination_type: str, svd_rank: int | None, density: float | None) -> None:
    if combination_type not in COMBINATION_TYPES:
        raise ConfigError(f"combination_type {combination_type!r}: expected {', '.join(COMBINATION_TYPES)}")
    if not adapters:
        raise ConfigError("no adapters: expected at least one, with a weight")
    for _, weight in adapters:
        if not is_finite_number(weight):
            raise ConfigError(f"weight of an adapter: expected a finite number, found {short(weight)}")
    if svd_rank is not None and svd_rank < 1:
        raise ConfigError(f"svd_rank: expected an integer >= 1, found {svd_rank}")
    if (combination_type == "ties") != (density is not None):
        raise ConfigError("density: ties needs it" if density is None else "density: only ties uses it")
    if density is not None and not 0 < density <= 1:
        raise ConfigError(f"density: expected a number in (0, 1], found {density}")
    first = adapters[0][0]
    for adapter, _ in adapters[1:]:
        first.check_fits(adapter.model_config)


def _terms(adapters: Weighted) -> dict[Module, list[_Term]]:
    """What each module's terms are, in the model's order of modules."""
    terms: dict[Module, list[_Term]] = {}
    for adapter, weight in adapters:
        for layer, pieces in enumerate(adapter.layers):
            for projection, piece in pieces.projections.items():
                terms.setdefault((layer, projection), []).append(_Term(piece.a, piece.b, weight * piece.scale))
    names = list(PROJECTIONS)
    return dict(sorted(terms.items(), key=lambda item: (item[0][0], names.index(item[0][1]))))


def _cat(terms: Sequence[_Term]) -> tuple[Floats, Floats]:
    a = np.concatenate([term.a * np.float32(term.factor) for term in terms], axis=0)
    return a, np.concatenate([term.b for term in terms], axis=1)


def _svd(terms: Sequence[_Term], rank: int) -> tuple[Floats, Floats]:
    """A the right singular vectors, B the left ones times the values; zeros where the sum has a lower rank.

    The sum has at most the rank of all terms together, so it is a small matrix between two orthogonal ones.
    """
    a, b = _cat(terms)
    left, inner_left = _orthogonal(b.astype(np.float64))
    right, inner_right = _orthogonal(a.T.astype(np.float64))
    out_a: Floats = np.zeros((rank, a.shape[1]), np.float32)
    out_b: Floats = np.zeros((b.shape[0], rank), np.float32)
    if left.size and right.size:
        u, values, v = np.linalg.svd(inner_left @ inner_right.T, full_matrices=False)
        count = min(rank, len(values))
        out_a[:count] = v[:count] @ right.T
        out_b[:, :count] = left @ (u[:, :count] * values[:count])
    return out_a, out_b


def _orthogonal(x: Doubles) -> tuple[Doubles, Doubles]:
    """(Q, S) with x [n, R] = Q·S and QᵀQ = 1, from the eigenvectors of xᵀx, which is small.

    Directions of less than 1e-7 of the largest are left out: float32 has not kept them.
    """
    values, vectors = np.linalg.eigh(x.T @ x)
    kept = values > values[-1] * 1e-14
    roots, kept_vectors = np.sqrt(values[kept]), vectors[:, kept]
    return x @ (kept_vectors / roots), (kept_vectors * roots).T


def _summed(module: Module, terms: Sequence[_Term], density: float | None) -> tuple[Floats, Floats]:
    """Linear, or with a density ties."""
    ranks = sorted({term.a.shape[0] for term in terms})
    if len(ranks) > 1:
        found = ", ".join(map(str, ranks))
        raise AdapterError(
            f"{module_path(*module)}: the adapters have ranks {found} there; linear and ties need one rank, cat and "
            "svd do not"
        )
    roots = [math.sqrt(abs(term.factor)) for term in terms]
    signed = [math.copysign(root, term.factor) for root, term in zip(roots, terms, strict=True)]
    a, b = np.stack([term.a for term in terms]), np.stack([term.b for term in terms])
    if density is None:
        return _weighted(a, signed).sum(0), _weighted(b, roots).sum(0)
    return _ties(a, signed, density), _ties(b, roots, density)


def _weighted(tensors: Floats, weights: Sequence[float]) -> Floats:
    return tensors * np.array(weights, np.float32)[:, None, None]


def _ties(tensors: Floats, weights: Sequence[float], density: float) -> Floats:
    """Trim each tensor to its largest values, elect a sign for each element, average what is left with that sign."""
    trimmed = np.stack([_trim(tensor, density) for tensor in tensors])
    elected = np.where(trimmed.sum(0) >= 0, 1, -1)
    agrees = np.sign(trimmed) == elected
    total = np.where(agrees, _weighted(trimmed, weights), 0).sum(0)
    return (total / np.maximum(agrees.sum(0), 1)).astype(np.float32)


def _trim(tensor: Floats, density: float) -> Floats:
    kept = int(density * tensor.size)
    if kept == tensor.size:
        return tensor
    largest = np.argpartition(np.abs(tensor).ravel(), tensor.size - kept)[tensor.size - kept :]
    trimmed = np.zeros_like(tensor)
    trimmed.ravel()[largest] = tensor.ravel()[largest]
    return trimmed


def _build(factors: Mapping[Module, tuple[Floats, Floats]], adapters: Weighted) -> Adapter:
    ranks = {module: a.shape[0] for module, (a, _) in factors.items()}
    rank = Counter(ranks.values()).most_common(1)[0][0]
    targets = tuple(Target(*module, own, float(own), 1.0) for module, own in ranks.items())
    first = adapters[0][0]
    settings = PlainSettings("", rank, float(rank), dropout=first.config.dropout)
    combined = Adapter(
        lora_config(settings, targets, first.model_config),
        first.model_config,
        targets,
        next((adapter.base_model for adapter, _ in adapters if adapter.base_model), ""),
    )
    for (layer, projection), (a, b) in factors.items():
        weight: Weight = combined.layers[layer].projections[projection]
        weight.a[...], weight.b[...] = a, b
    return combined
