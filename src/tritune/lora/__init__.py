"""The adapter: its types, its values, its place on a device, its files."""

from tritune.lora.adapter import Adapter
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
    "AdapterPool",
    "LayerAdapter",
    "LayerAdapterAdamState",
    "LayerAdapterGrad",
    "LoRAConfig",
    "Weight",
    "WeightGrad",
]
