"""The tensors of an adapter that lies in a safetensors file (PEFT, mlx-lm)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tritune.errors import AdapterError
from tritune.formats.safetensors import SafetensorsFile
from tritune.lora.patterns import plain
from tritune.lora.tensors import AdapterTensors, Place
from tritune.lora.types import Floats
from tritune.ops.arrays import widen

FLOAT_TYPES = ("F32", "F16", "BF16")


def adapter_tensors(
    file: SafetensorsFile, place: Callable[[str], Place | None], example: str, *, transposed: bool = False
) -> AdapterTensors:
    """See AdapterTensors. Raises AdapterError for an adapter tensor that is not stored in floats."""
    for name, info in file.infos.items():
        if place(name) is not None and info.dtype not in FLOAT_TYPES:
            raise AdapterError(
                f"{file.path}: tensor {plain(name)} has dtype {info.dtype}; expected {', '.join(FLOAT_TYPES)}"
            )

    def read(name: str) -> Floats:
        return widen(file.read(name), np.dtype(np.float32))  # type: ignore[return-value]

    shapes = {name: info.shape for name, info in file.infos.items()}
    return AdapterTensors(file.path, place, shapes, read, example, transposed)
