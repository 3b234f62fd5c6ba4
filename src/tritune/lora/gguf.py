"""GGUF LoRA files, as llama.cpp's convert_lora_to_gguf.py writes them and its llama_adapter_lora reads them.

The correction is (alpha / rank) * B·A with the rank of the tensor and ONE alpha for the file; 0 or none means 1 * B·A.
Where the adapter's scales need more than one alpha, they are multiplied into B. Rows of q and k of a "llama" base are
in the order of interleaved rotary pairs, as in the base's own file, and so are the rows of their B.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from tritune.atomic import write_atomic
from tritune.errors import AdapterError, InputError
from tritune.formats.fields import Fields
from tritune.formats.gguf import GGUFModel
from tritune.lora.adapter import Adapter, tensor_name
from tritune.lora.tensors import (
    LAYER,
    AdapterTensors,
    Place,
    PlainSettings,
    assemble,
    finite_tensors,
    pairs_of,
    place_of,
    scaled,
)
from tritune.lora.types import Floats
from tritune.models.config import GGUF_ACTIVATIONS, ModelConfig
from tritune.models.linears import PROJECTIONS, module_path
from tritune.models.names import GGUF_PROJECTIONS, gguf_layer

GGUF_NAMES = {f"{short}_proj": name for short, name in GGUF_PROJECTIONS.items()}
HF_NAMES = {name: projection for projection, name in GGUF_NAMES.items()}
NAME = re.compile(rf"blk\.{LAYER}\.({'|'.join(HF_NAMES)})\.weight\.lora_([ab])")
FLOAT32 = 0
LARGEST = float(np.finfo(np.float32).max)
QUANTIZATION_VERSION = 2


class GgufFile:
    """An opened GGUF LoRA file."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFModel(path)
        fields = Fields(self._file.metadata, str(path))
        if fields.text("general.type", "model") != "adapter":
            raise AdapterError(f"{path}: a GGUF file of type {fields.text('general.type', 'model')}; expected adapter")
        if fields.text("adapter.type") != "lora":
            raise fields.error("adapter.type", "'lora'")
        if "adapter.alora.invocation_tokens" in fields:
            raise AdapterError(f"{path}: adapter.alora.invocation_tokens: activated LoRA is not supported")
        self.architecture = fields.text("general.architecture")
        self.alpha = fields.number("adapter.lora.alpha", 0.0)
        self.base_model = fields.text("general.base_model.0.name", "")
        shapes = {name: info.shape for name, info in self._file.infos.items()}
        self.tensors = AdapterTensors(path, _place, shapes, self._read, _name(0, "q_proj", "a"))

    def load(self, model: ModelConfig, base_name: str) -> Adapter:
        """The adapter. Raises AdapterError."""
        self._check_architecture(model)
        pairs = pairs_of(self.tensors, model.num_layers)
        shapes = self.tensors.shapes
        ranks = {module_path(*module): (shapes[pair.names["A"]] or (1,))[0] for module, pair in pairs.items()}
        if min(ranks.values()) < 1:
            raise AdapterError(f"{self.tensors.path}: a tensor has rank 0; expected a rank >= 1")
        # Alpha 0 leaves the scale to the caller, who has given none: 1.
        rank = Counter(ranks.values()).most_common(1)[0][0]
        alphas = {} if self.alpha else {path: float(rank) for path, rank in ranks.items()}
        settings = PlainSettings(
            str(self.tensors.path), rank, self.alpha or float(rank), self.base_model, ranks=ranks, alphas=alphas
        )
        adapter = assemble(self.tensors, settings, model, base_name)
        if self.architecture == "llama":
            for target in adapter.targets:
                heads = _reordered_heads(target.projection, model)
                if heads:
                    b = adapter.layers[target.layer].projections[target.projection].b
                    b[...] = b.reshape(heads, -1, 2, b.shape[1]).swapaxes(1, 2).reshape(b.shape)
        return adapter

    def _check_architecture(self, model: ModelConfig) -> None:
        if model.model_type == "unknown":
            if self.architecture == "llama" and any(".attn_q." in n or ".attn_k." in n for n in self.tensors.shapes):
                raise AdapterError(
                    f"{self.tensors.path}: the order of its rows depends on the number of heads; the model is needed"
                )
            return
        wanted = gguf_architecture(model)
        # The names of the bitnet family differ between programs; the tensors are the same.
        if self.architecture not in GGUF_ACTIVATIONS or (self.architecture == "llama") != (wanted == "llama"):
            raise AdapterError(
                f"{self.tensors.path}: made for a base of architecture {self.architecture}; this base is {wanted}"
            )

    def _read(self, name: str) -> Floats:
        return self._file.dequantise(name, slice(None)).reshape(self._file.info(name).shape)


def _place(name: str) -> Place | None:
    match = NAME.fullmatch(name)
    if match is None:
        return None
    projection = HF_NAMES[match[2]]
    return place_of(match[1], PROJECTIONS[projection], projection, match[3])


def _name(layer: int, projection: str, matrix: str) -> str:
    return f"{gguf_layer(layer, GGUF_NAMES[projection])}.weight.lora_{matrix}"


def gguf_architecture(model: ModelConfig) -> str:
    """general.architecture of a model's GGUF file: its own, or the one that a converter gives to a directory."""
    if model.model_type == "bitnet":
        return "bitnet-b1.58" if model.activation == "relu2" else "bitnet"
    if model.model_type == "llama" and model.sub_norms:
        return "bitnet"
    return model.model_type


def _reordered_heads(projection: str, model: ModelConfig) -> int:
    """Heads whose rows a "llama" file has in another order; 0 for a projection that it leaves alone."""
    return {"q_proj": model.num_heads, "k_proj": model.num_kv_heads}.get(projection, 0)


def save_gguf(adapter: Adapter, path: Path) -> None:
    """Write a file, float32, whole or not at all. Raises AdapterError; what was there then stays."""
    tensors = finite_tensors(adapter, path)
    model = adapter.model_config
    architecture = gguf_architecture(model)
    alpha = _file_alpha(adapter)
    named: dict[str, Floats] = {}
    for target in adapter.targets:
        a, b = (tensors[tensor_name(target.layer, target.projection, matrix)] for matrix in "AB")
        b = scaled(b, target.scale * target.rank / alpha, path)
        heads = _reordered_heads(target.projection, model)
        if architecture == "llama" and heads:
            b = b.reshape(heads, 2, -1, b.shape[1]).swapaxes(1, 2).reshape(b.shape)
        named[_name(target.layer, target.projection, "a")] = a
        named[_name(target.layer, target.projection, "b")] = np.ascontiguousarray(b)
    if path.is_dir():
        raise AdapterError(f"{path}: cannot save an adapter there: it is a directory; expected a file or a new name")
    try:
        write_atomic(path, _gguf_bytes(architecture, alpha, adapter.base_model, path.stem, named))
    except InputError as error:
        raise AdapterError(str(error)) from None


def _file_alpha(adapter: Adapter) -> float:
    """The alpha that holds for most targets; 0 would mean something else."""
    counts = Counter(target.scale * target.rank for target in adapter.targets if target.scale > 0)
    alpha = counts.most_common(1)[0][0] if counts else float(adapter.config.rank)
    return float(np.float32(min(alpha, LARGEST))) or 1.0


def _gguf_bytes(architecture: str, alpha: float, base_model: str, name: str, tensors: dict[str, Floats]) -> bytes:
    from gguf import GGUFWriter

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "adapter.gguf"
        writer = GGUFWriter(file, architecture)
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", alpha)
        writer.add_name(name)
        if base_model:
            writer.add_base_model_count(1)
            writer.add_base_model_name(0, base_model)
        writer.add_file_type(FLOAT32)
        writer.add_quantization_version(QUANTIZATION_VERSION)
        for tensor, values in tensors.items():
            writer.add_tensor(tensor, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file.read_bytes()
