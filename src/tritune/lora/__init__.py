"""The adapter: its types, its values, its place on a device, its files."""

from tritune.lora.adapter import Adapter
from tritune.lora.combine import AdapterLike, as_one, combine_adapters
from tritune.lora.config import LoRAConfig
from tritune.lora.pool import AdapterPool
from tritune.lora.types import (
    AdamState,
    AdapterAdamState,
    AdapterGrad,
    LayerAdapter,
    LayerAdapterAdamState,
    LayerAdapterGrad,
    Weight,
    WeightGrad,
)

__all__ = [
    "AdamState",
    "Adapter",
    "AdapterAdamState",
    "AdapterGrad",
    "AdapterLike",
    "AdapterPool",
    "LayerAdapter",
    "LayerAdapterAdamState",
    "LayerAdapterGrad",
    "LoRAConfig",
    "Weight",
    "WeightGrad",
    "as_one",
    "combine_adapters",
]
