"""export_dense: a model and its adapter as one ordinary model, for programs that know neither ternary nor LoRA."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tritune.atomic import new_directory
from tritune.errors import AdapterError
from tritune.lora import AdapterLike, as_one
from tritune.model import Model
from tritune.models.dense import DenseModel, check_dense, write_dense
from tritune.models.weights import ModelSource
from tritune.text.tokenizer_files import write_directory

SAMPLE = "Once upon a time, there was a little girl who lived in a house near the sea. Every day she"
SAMPLE_TOKENS = 24

COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class DenseExport:
    """What was written, and how its logits differ from the live model's on a few tokens.

    difference and adapter_effect are ‖a − b‖ / ‖b‖ over all logits: of the export to the live model with its adapter,
    and of the live model without it to the same (0 without an adapter).
    """

    path: Path
    nbytes: int  # of the weights
    tokens: int
    difference: float
    largest: float  # the largest difference of one logit
    same_token: int  # after how many of the tokens the likeliest one is the same
    adapter_effect: float


def export_dense(
    model: Model, path: str | Path, adapter: AdapterLike | None = None, *, tokens: Sequence[int] | None = None
) -> DenseExport:
    """Write a Hugging Face directory in bfloat16 whose linears hold W + s·B·A, and measure what that changes.

    It is no longer ternary: 16 bits a weight, and activations that are not rounded to int8. transformers loads it as a
    plain BitNet (sub-norms) or Llama; tritune refuses it, since rounding it back would lose what the adapter learned.
    It is written layer by layer, whole or not at all.

    Args:
        model: The base.
        path: Where the directory goes; nothing may be there.
        adapter: One, or several with weights; None: the base alone.
        tokens: On which the logits are compared (default: a sentence).

    Raises:
        InputError: Something is at ``path``.
        ModelFileError: The model has a shape that transformers has no class for.
        AdapterError: The adapter does not fit, or a correction is not finite.
    """
    one = as_one(adapter)
    if one is not None:
        one.check_fits(model.config)
    check_dense(model.config)

    def correction(layer: int, projection: str) -> NDArray[np.float32] | None:
        weight = None if one is None else one.layers[layer].projections.get(projection)
        if weight is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            delta: NDArray[np.float32] = (weight.b * np.float32(weight.scale)).astype(np.float32) @ weight.a
        if not np.isfinite(delta).all():
            raise AdapterError(f"{path}: not exported: the correction of layer {layer}, {projection} is not finite")
        return delta

    place = Path(path)
    with new_directory(place) as folder:
        write_dense(model.source, folder, correction)
        _write_tokenizer(model, folder)
        sample = list(tokens) if tokens else model.tokenizer.encode_prompt(SAMPLE)[:SAMPLE_TOKENS]
        dense = DenseModel(folder).logits(sample)
    live = model.logits(sample, one)
    size = sum(file.stat().st_size for file in place.glob("*.safetensors"))
    return DenseExport(
        path=place,
        nbytes=size,
        tokens=len(sample),
        difference=_distance(dense, live),
        largest=float(np.abs(dense - live).max()),
        same_token=int((dense.argmax(-1) == live.argmax(-1)).sum()),
        adapter_effect=0.0 if one is None else _distance(model.logits(sample), live),
    )


def _distance(found: NDArray[np.floating], expected: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def _write_tokenizer(model: Model, folder: Path) -> None:
    source: ModelSource = model.source
    if source.directory is not None:
        for name in COPIED:
            if (source.directory / name).is_file():
                shutil.copyfile(source.directory / name, folder / name)
        return
    write_directory(model.tokenizer, folder)
    ends = {"eos_token_id": list(source.generation.eos_token_ids) or None}
    (folder / "generation_config.json").write_text(json.dumps(ends) + "\n", encoding="utf-8")
