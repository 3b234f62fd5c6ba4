"""What is told of adapters, as plain values: for ``tritune info --adapter`` and ``tritune adapter``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from tritune.cli.facts import OpenedModel
from tritune.lora import Adapter
from tritune.lora.deltas import Distance, delta_norms, distances
from tritune.lora.files import detect_format, read_adapter, weights_file
from tritune.lora.patterns import plain
from tritune.models.linears import PROJECTIONS, module_path

Value = TypeVar("Value", int, float)


def opened_adapter(path: str, model: OpenedModel | None) -> Adapter:
    """An adapter, checked against a model if there is one. Raises AdapterError."""
    return read_adapter(Path(path)) if model is None else Adapter.load(path, model)


def adapter_facts(path: str, model: OpenedModel | None) -> dict[str, Any]:
    """What an adapter's files say; with a model they must fit it. Raises AdapterError."""
    folder = Path(path)
    kind = detect_format(folder)
    adapter = opened_adapter(path, model)
    norms = delta_norms(adapter)
    return {
        "path": path,
        "format": kind,
        "base_model": plain(adapter.base_model) or None,
        "rank": _one_or_range([target.rank for target in adapter.targets]),
        "alpha": _one_or_range([target.alpha for target in adapter.targets]),
        "scale": _one_or_range([target.scale for target in adapter.targets]),
        "rslora": adapter.config.rslora,
        "dropout": adapter.config.dropout,
        "targets": [name for name in PROJECTIONS if any(target.projection == name for target in adapter.targets)],
        "layers": sorted({target.layer for target in adapter.targets}),
        "parameters": adapter.num_parameters,
        "file_bytes": weights_file(folder, kind).stat().st_size,
        "norms": {module_path(*module): norm for module, norm in norms.items()},
        "fits_model": True if model is not None else None,
    }


def _one_or_range(values: list[Value]) -> Value | list[Value]:
    """The value that all have, or the smallest and the largest."""
    return values[0] if len(set(values)) == 1 else [min(values), max(values)]


def distance_facts(first: Adapter, second: Adapter) -> dict[str, Any]:
    """How far the corrections of two adapters lie apart, by module and in all. Raises AdapterError."""
    found = distances(first, second)
    total = Distance(*(_root([getattr(d, field) for d in found.values()]) for field in Distance.__dataclass_fields__))
    return {
        "total": _distance(total),
        "modules": {module_path(*module): _distance(distance) for module, distance in found.items()},
    }


def _root(norms: list[float]) -> float:
    return sum(norm * norm for norm in norms) ** 0.5


def _distance(distance: Distance) -> dict[str, Any]:
    return {
        "relative": distance.relative,
        "difference": distance.difference,
        "norms": [distance.norm, distance.other_norm],
    }
