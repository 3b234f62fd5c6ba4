"""A model's weights as arrays, whatever file they come from, and the one call that opens a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ModelFileError
from tritune.formats.file_bytes import RowSource
from tritune.models.config import GenerationDefaults, ModelConfig


@dataclass(frozen=True)
class TernaryMatrix:
    """Codes int8 [out, in] in {-1, 0, 1} and the one number that the product is multiplied by."""

    codes: NDArray[np.int8]
    scale: float


@dataclass(frozen=True)
class FloatTable:
    """A [V, D] table in its file's own precision: float32, float16, or the raw uint16 bits of bfloat16."""

    rows: RowSource  # an array, or rows that are read from the file when they are asked for
    dtype: Literal["f32", "f16", "bf16"]

    @property
    def data(self) -> NDArray[np.generic]:
        """All rows."""
        return self.rows[:]


@dataclass(frozen=True)
class LayerWeights:
    """One block: seven ternary projections, and norm gains as float32 arrays."""

    q: TernaryMatrix  # [H * d, D]
    k: TernaryMatrix  # [G * d, D]
    v: TernaryMatrix  # [G * d, D]
    o: TernaryMatrix  # [D, H * d]
    gate: TernaryMatrix  # [F, D]
    up: TernaryMatrix  # [F, D]
    down: TernaryMatrix  # [D, F]
    input_norm: NDArray[np.float32]  # [D]
    post_attention_norm: NDArray[np.float32]  # [D]
    attn_sub_norm: NDArray[np.float32] | None  # [H * d]
    ffn_sub_norm: NDArray[np.float32] | None  # [F]


class ModelSource(ABC):
    """An opened model. Every tensor's shape and dtype was checked against the config when it was opened.

    The readers may still raise ModelFileError, for values that cannot be used (a code that is not ternary, a scale that
    is not finite). Layers are decoded when asked for, so that the codes of one layer at a time are in memory.
    """

    config: ModelConfig
    generation: GenerationDefaults
    directory: Path | None = None  # of a Hugging Face model: where its tokenizer's files are
    gguf_metadata: dict[str, Any] | None = None  # of a GGUF model: where its tokenizer is

    @abstractmethod
    def embedding(self) -> FloatTable:
        """The token embedding [V, D]."""

    @abstractmethod
    def head(self) -> FloatTable | None:
        """The output matrix [V, D], or None when it is the embedding."""

    @abstractmethod
    def final_norm(self) -> NDArray[np.float32]:
        """Gain [D] of the norm before the head."""

    @abstractmethod
    def layer(self, index: int) -> LayerWeights:
        """The weights of a block, decoded now."""


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of the seven projections, by their field in LayerWeights."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    return {
        "q": (config.q_size, hidden),
        "k": (config.kv_size, hidden),
        "v": (config.kv_size, hidden),
        "o": (hidden, config.q_size),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }


def norm_sizes(config: ModelConfig) -> dict[str, int]:
    """Sizes of a block's norms, by their field in LayerWeights."""
    sizes = {"input_norm": config.hidden_size, "post_attention_norm": config.hidden_size}
    if config.sub_norms:
        sizes |= {"attn_sub_norm": config.q_size, "ffn_sub_norm": config.intermediate_size}
    return sizes


def quantise_master(weights: NDArray[np.float32]) -> TernaryMatrix:
    """Ternary codes and scale of float weights [out, in], as transformers' WeightQuant computes them.

    1 / s with s = max(mean |W|, 1e-5), rounding half to even, all in float32; the scale is the reciprocal of that
    reciprocal.
    """
    one = np.float32(1)
    mean = np.float32(np.abs(weights).mean(dtype=np.float64))
    inverse = one / np.maximum(mean, np.float32(1e-5))
    codes = np.clip(np.rint(weights * inverse), -1, 1).astype(np.int8)
    return TernaryMatrix(codes, float(one / inverse))


def open_model(path_or_id: str | Path, *, progress: bool = True) -> ModelSource:
    """Open a model: a Hugging Face directory, a .gguf file, or a model id ``org/name``, which is downloaded.

    An existing path is used as it is. ``progress`` shows bars while downloading. Raises ModelFileError.
    """
    path = Path(path_or_id).expanduser()
    # The readers build on this module, so they are imported when they are needed.
    if path.is_dir():
        from tritune.models.hf import HFSource

        return HFSource(path, name=path.resolve().name)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelFileError(f"{path}: expected a model directory or a .gguf file")
        from tritune.models.gguf import GGUFSource

        return GGUFSource(path)
    from tritune.models.hub import download, is_model_id

    if isinstance(path_or_id, str) and is_model_id(path_or_id):
        from tritune.models.hf import HFSource

        return HFSource(download(path_or_id, progress=progress), name=path_or_id)
    raise ModelFileError(f"{path_or_id}: no such file or directory, and not a model id (org/name)")
