"""A dense export is what transformers loads as a plain model: its linears, its tokenizer, its logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from oracles.harness import EXACT, Ours, error, random_adapter
from tiny_gguf import make_gguf
from tiny_models import make_hf
from tiny_tokenizer import gguf_metadata
from tritune.backends.numpy import NumpyBackend
from tritune.lora import LoRAConfig
from tritune.models.dense import DenseModel, write_dense
from tritune.text import Tokenizer
from tritune.text.tokenizer_files import write_directory

IDS = [5, 40, 41, 7, 90, 12, 12, 3]
BF16 = 0.02  # bfloat16 keeps 8 bits of each weight
MODELS: dict[str, dict[str, Any]] = {
    "bitnet": {"hidden": 32, "vocab": 96},
    "bitlinear, head of its own": {"linear_class": "bitlinear", "act": "silu", "hidden": 32, "vocab": 96, "tie": False},
    "master weights, f16": {"linear_class": None, "hidden": 32, "vocab": 96, "dtype": "F16"},
    "llama": {"model_type": "llama", "head_dim": 12, "vocab": 96, "tie": False},
    "llama, sub-norms under old names": {"model_type": "llama", "sub_norms": True, "old_names": True, "vocab": 96},
    "gguf llama": {"arch": "llama", "vocab": 96},
    "gguf bitnet": {"arch": "bitnet-b1.58", "vocab": 96, "tie": False},
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers_loads_it_as_a_plain_model(name: str, tmp_path: Path) -> None:
    options = MODELS[name]
    path = tmp_path / ("base.gguf" if "arch" in options else "base")
    (make_gguf if "arch" in options else make_hf)(path, **options)
    ours = Ours(NumpyBackend(), path, "float")
    adapter = random_adapter(ours.config, LoRAConfig(rank=4, alpha=8), b_std=0.1)

    def correction(layer: int, projection: str) -> Any:
        weight = adapter.layers[layer].projections[projection]
        return weight.scale * weight.b @ weight.a

    (tmp_path / "dense").mkdir()
    write_dense(ours.source, tmp_path / "dense", correction)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "dense", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    linears = [module for key, module in model.named_modules() if key.endswith("_proj")]
    assert {type(module) for module in linears} == {torch.nn.Linear}
    assert len(linears) == 7 * ours.config.num_layers
    with torch.no_grad():
        theirs = model.eval()(input_ids=torch.tensor([IDS])).logits[0].numpy()
    found = DenseModel(tmp_path / "dense").logits(IDS)
    assert error(found, theirs) <= EXACT
    live = ours.logits(IDS, adapter)
    assert error(found, live) <= BF16
    assert error(ours.logits(IDS), live) > 4 * BF16  # the adapter counts


@pytest.mark.parametrize("kind", ["bitnet", "chatml"])
def test_the_tokenizer_of_a_gguf_file_travels(kind: str, tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer = Tokenizer.from_gguf(gguf_metadata(kind, **{"tokenizer.chat_template": template}))
    write_directory(tokenizer, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_directory(tmp_path)
    for text in ("hello there", "It's 東京 🙂\n\n 123", "<|eot_id|>Assistant: <|im_end|>"):
        assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text) == ours.encode_prompt(text)
    assert (theirs.eos_token, theirs.chat_template) == (tokenizer.named_tokens["eos_token"], template)
    assert ours.chat_template == template
    assert np.array_equal(ours.end_ids, tokenizer.end_ids)
