"""Adapter: the LoRA weights of one fine-tuning, on the host."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from tritune.errors import AdapterError
from tritune.lora.config import LoRAConfig, Target, resolve_targets
from tritune.lora.init import fill_kaiming_uniform
from tritune.lora.layout import Layout, make_layout
from tritune.lora.types import (
    AdamState,
    AdapterAdamState,
    AdapterGrad,
    Floats,
    LayerAdapter,
    LayerAdapterAdamState,
    LayerAdapterGrad,
    Weight,
    WeightGrad,
)
from tritune.models.config import ModelConfig
from tritune.models.linears import GROUP_OF, module_path

Item = TypeVar("Item")


class HasConfig(Protocol):
    """Anything that knows its model's config and name: tritune.Model."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def name(self) -> str: ...


def tensor_name(layer: int, projection: str, matrix: str) -> str:
    """PEFT's name of an adapter tensor; matrix is ``"A"`` or ``"B"``."""
    return f"base_model.model.{module_path(layer, projection)}.lora_{matrix}.weight"


class Adapter:
    """LoRA weights for a model: a config, the projections that it adapts, and one flat float32 array of parameters."""

    def __init__(
        self, config: LoRAConfig, model: ModelConfig, targets: tuple[Target, ...], base_model: str = ""
    ) -> None:
        """An adapter of zeros. ``base_model`` is the name that goes into the adapter's config file."""
        self.config = config
        self.model_config = model
        self.targets = targets
        self.base_model = base_model
        keys = {(target.layer, GROUP_OF[target.projection]) for target in targets}
        self.layout: Layout = make_layout(model, keys, max(target.rank for target in targets))
        self.parameters: Floats = np.zeros(self.layout.size, np.float32)
        self.layers: tuple[LayerAdapter, ...] = tuple(LayerAdapter(p) for p in self._by_layer(self._weight))

    @classmethod
    def create(cls, model: HasConfig, config: LoRAConfig | None = None, seed: int = 0) -> Adapter:
        """A fresh adapter: A Kaiming-uniform, B zero (so it changes nothing yet). Raises ConfigError."""
        config = config or LoRAConfig()
        adapter = cls(config, model.config, resolve_targets(config, model.config), model.name)
        for target in adapter.targets:
            weight = adapter.layers[target.layer].projections[target.projection]
            fill_kaiming_uniform(weight.a, seed, tensor_name(target.layer, target.projection, "A"))
        return adapter

    @classmethod
    def load(cls, path: str | Path, model: HasConfig) -> Adapter:
        """Read an adapter made for ``model``, strictly: a PEFT or mlx-lm directory, a GGUF LoRA file or Hesper's file.

        The content tells the format. Raises AdapterError if it is damaged, not supported, or for another size.
        """
        from tritune.lora.files import load_adapter

        return load_adapter(Path(path), model.config, model.name)

    def save(self, path: str | Path, format: str = "peft") -> None:
        """Write an adapter, atomically; one that is already there is replaced (but not a directory of mlx-lm).

        format: ``peft`` (a directory, the native form), ``mlx`` (a new directory), ``gguf`` or ``hesper`` (a file). In
        GGUF and mlx-lm, scales that the format has no field for are multiplied into B. Raises AdapterError for what the
        format cannot hold, ConfigError for an unknown format.
        """
        from tritune.lora.files import save_adapter

        save_adapter(self, Path(path), format)

    @property
    def num_parameters(self) -> int:
        """Trainable parameters, padding not counted."""
        return sum(w.a.size + w.b.size for layer in self.layers for w in layer.projections.values())

    def tensors(self, flat: Floats | None = None) -> dict[str, Floats]:
        """The matrices of ``flat`` (default: the parameters) by PEFT tensor name; views, not copies."""
        flat = self.parameters if flat is None else flat
        out: dict[str, Floats] = {}
        for target in self.targets:
            for matrix, view in (("A", self.layout.a_view), ("B", self.layout.b_view)):
                name = tensor_name(target.layer, target.projection, matrix)
                out[name] = view(flat, target.layer, target.projection, target.rank)
        return out

    def check_fits(self, model: ModelConfig) -> None:
        """Raise AdapterError when a model has other sizes than the one that the adapter was made for."""
        for label in ("hidden_size", "intermediate_size", "num_layers", "q_size", "kv_size"):
            mine, theirs = getattr(self.model_config, label), getattr(model, label)
            if mine != theirs:
                raise AdapterError(f"the adapter was made for {label} {mine}, this base has {theirs}")

    def copy(self) -> Adapter:
        """An adapter of its own with the same contents."""
        other = Adapter(self.config, self.model_config, self.targets, self.base_model)
        other.parameters[:] = self.parameters
        return other

    def content_key(self) -> str:
        """A digest of the weights and scales: equal for adapters that compute the same."""
        digest = hashlib.sha256(self.parameters.tobytes())
        digest.update(repr(self.targets).encode())
        return digest.hexdigest()

    def grad_views(self, flat: Floats) -> AdapterGrad:
        """Names for the pieces of a gradient laid out like the parameters."""
        return AdapterGrad(flat, tuple(LayerAdapterGrad(p) for p in self._by_layer(lambda t: self._grad(flat, t))))

    def adam_views(self, m: Floats, v: Floats, step: int) -> AdapterAdamState:
        """Names for the pieces of Adam's moments laid out like the parameters."""

        def state(target: Target) -> AdamState:
            first, second = self._grad(m, target), self._grad(v, target)
            return AdamState(first.da, first.db, second.da, second.db)

        return AdapterAdamState(m, v, tuple(LayerAdapterAdamState(p) for p in self._by_layer(state)), step)

    def _weight(self, target: Target) -> Weight:
        pieces = self._grad(self.parameters, target)
        return Weight(pieces.da, pieces.db, pieces.da.shape[1], pieces.db.shape[0], target.rank, target.scale)

    def _grad(self, flat: Floats, target: Target) -> WeightGrad:
        at = (flat, target.layer, target.projection, target.rank)
        return WeightGrad(self.layout.a_view(*at), self.layout.b_view(*at))

    def _by_layer(self, make: Callable[[Target], Item]) -> list[Mapping[str, Item]]:
        layers: list[dict[str, Item]] = [{} for _ in range(self.model_config.num_layers)]
        for target in self.targets:
            layers[target.layer][target.projection] = make(target)
        return list(layers)
