"""tritune: fine-tune ternary (1.58-bit) language models with LoRA, and run them with their adapters."""

from tritune.chat import Chat
from tritune.errors import (
    AdapterError,
    ConfigError,
    ContextLengthError,
    DataError,
    DeviceError,
    DeviceLostError,
    InputError,
    ModelFileError,
    OutOfMemoryError,
    TrainingError,
    TrituneError,
)
from tritune.evaluation import Evaluation, evaluate
from tritune.export import DenseExport, export_dense
from tritune.lora import Adapter, LoRAConfig
from tritune.model import Model, load
from tritune.stream import TextStream
from tritune.training import TrainConfig, train

__all__ = [
    "Adapter",
    "AdapterError",
    "Chat",
    "ConfigError",
    "ContextLengthError",
    "DataError",
    "DenseExport",
    "DeviceError",
    "DeviceLostError",
    "Evaluation",
    "InputError",
    "LoRAConfig",
    "Model",
    "ModelFileError",
    "OutOfMemoryError",
    "TextStream",
    "TrainConfig",
    "TrainingError",
    "TrituneError",
    "evaluate",
    "export_dense",
    "load",
    "train",
]
