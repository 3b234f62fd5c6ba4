"""Hesper's binary file (Hesper/LoRA/IO.lean): q and v of every layer, float32, little-endian.

u32 magic, u32 version 1, u32 rank, f32 alpha, u32 layers, u32 reserved; then per layer Q_A [rank, hidden],
Q_B [hidden, rank], V_A [rank, hidden], V_B [kv, rank]. The scale is alpha / rank. The file does not say the sizes, so
it can only be read for a model.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tritune.atomic import write_atomic
from tritune.errors import AdapterError, InputError
from tritune.lora.adapter import Adapter, tensor_name
from tritune.lora.tensors import AdapterTensors, PlainSettings, assemble, finite_tensors
from tritune.lora.types import Floats
from tritune.models.config import ModelConfig

MAGIC = struct.pack("<I", 0x4C4F5241)
VERSION = 1
HEADER = struct.Struct("<IIIfII")
PARTS = (("Q_A", "q_proj", "A"), ("Q_B", "q_proj", "B"), ("V_A", "v_proj", "A"), ("V_B", "v_proj", "B"))


class HesperFile:
    """An opened file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(HEADER.size)
        if len(start) < HEADER.size:
            raise AdapterError(f"{path}: truncated: {len(start)} bytes; a Hesper file's header has {HEADER.size}")
        _, version, self.rank, self.alpha, self.layers, _ = HEADER.unpack(start)
        if version != VERSION:
            raise AdapterError(f"{path}: version {version} of Hesper's format; expected {VERSION}")
        if self.rank < 1 or self.layers < 1:
            raise AdapterError(f"{path}: rank {self.rank} and {self.layers} layers; expected at least 1 of each")
        if not math.isfinite(self.alpha) or self.alpha < 0:
            raise AdapterError(f"{path}: alpha is {self.alpha}; expected a number >= 0")

    @property
    def tensors(self) -> AdapterTensors:
        """Raises AdapterError: without a model there are no shapes."""
        raise AdapterError(f"{self._path}: a Hesper file does not say the sizes of its matrices; the model is needed")

    def load(self, model: ModelConfig, base_name: str) -> Adapter:
        """The adapter. Raises AdapterError."""
        if self.layers != model.num_layers:
            raise AdapterError(f"{self._path}: made for {self.layers} layers, this base has {model.num_layers}")
        _check_square(model, self._path)
        shapes = _shapes(model, self.rank)
        per_layer = sum(map(math.prod, shapes.values()))
        expected = HEADER.size + 4 * self.layers * per_layer
        if self._size != expected:
            raise AdapterError(
                f"{self._path}: {self._size} bytes; rank {self.rank} and this base's hidden {model.hidden_size}, "
                f"key/value size {model.kv_size} and {self.layers} layers make {expected}: truncated, or made for "
                "another base"
            )
        data = np.memmap(self._path, "<f4", "r", HEADER.size, (self.layers, per_layer))
        settings = PlainSettings(str(self._path), self.rank, self.alpha)
        return assemble(_tensors(self._path, data, shapes), settings, model, base_name)


def _shapes(model: ModelConfig, rank: int) -> dict[str, tuple[int, int]]:
    hidden = model.hidden_size
    return {"Q_A": (rank, hidden), "Q_B": (hidden, rank), "V_A": (rank, hidden), "V_B": (model.kv_size, rank)}


def _check_square(model: ModelConfig, path: Path) -> None:
    if model.q_size != model.hidden_size:
        raise AdapterError(
            f"{path}: Hesper's format has a q of hidden × hidden; this base's is {model.q_size} × {model.hidden_size}"
        )


def _tensors(path: Path, data: NDArray[np.float32], shapes: dict[str, tuple[int, int]]) -> AdapterTensors:
    """The tensors under names of their own."""
    starts = dict(zip(shapes, np.cumsum([0, *map(math.prod, shapes.values())]).tolist(), strict=False))
    places = {
        f"{part} of layer {layer}": (layer, projection, matrix)
        for layer in range(len(data))
        for part, projection, matrix in PARTS
    }

    def read(name: str) -> Floats:
        part, start = name[:3], starts[name[:3]]
        return data[places[name][0], start : start + math.prod(shapes[part])].reshape(shapes[part])

    return AdapterTensors(path, places.get, {name: shapes[name[:3]] for name in places}, read, next(iter(places)))


def save_hesper(adapter: Adapter, path: Path) -> None:
    """Write a file, whole or not at all.

    Raises AdapterError for what the format cannot hold: other modules than q_proj and v_proj of every layer, several
    ranks or scales, heads × head size other than hidden.
    """
    tensors = finite_tensors(adapter, path)
    model = adapter.model_config
    _check_square(model, path)
    modules = {(target.layer, target.projection) for target in adapter.targets}
    if modules != {(layer, name) for layer in range(model.num_layers) for name in ("q_proj", "v_proj")}:
        found = ", ".join(sorted({name for _, name in modules}))
        raise AdapterError(
            f"{path}: not saved: Hesper's format holds q_proj and v_proj of every layer; this adapter has {found} of "
            f"{len({layer for layer, _ in modules})} layers"
        )
    scalings = {(target.rank, target.scale) for target in adapter.targets}
    if len(scalings) > 1:
        raise AdapterError(f"{path}: not saved: Hesper's format has one rank and one alpha; this adapter has several")
    rank, scale = scalings.pop()
    pieces = [HEADER.pack(0x4C4F5241, VERSION, rank, scale * rank, model.num_layers, 0)]
    for layer in range(model.num_layers):
        pieces += [tensors[tensor_name(layer, name, matrix)].astype("<f4").tobytes() for _, name, matrix in PARTS]
    if path.is_dir():
        raise AdapterError(f"{path}: cannot save an adapter there: it is a directory; expected a file or a new name")
    try:
        write_atomic(path, b"".join(pieces))
    except InputError as error:
        raise AdapterError(str(error)) from None
