"""transformers loads the tiny models, and finds the codes and scales that tritune finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_models import HF_MODULES, make_hf
from tritune.models.weights import open_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

KINDS: dict[str, dict[str, Any]] = {
    "bitnet-autobitlinear": {},
    "bitnet-bitlinear": {"linear_class": "bitlinear", "ffn": 44},
    "bitnet-master": {"linear_class": None, "ffn": 20},
    "bitnet-silu-shards": {"act": "silu", "shards": 3, "scale_dtype": "BF16"},
    "llama-autobitlinear": {"model_type": "llama", "head_dim": 24, "tie": False},
    "llama-bitlinear": {"model_type": "llama", "linear_class": "bitlinear", "dtype": "F16"},
    "llama-master": {"model_type": "llama", "linear_class": None, "dtype": "F32"},
}


def load_reference(path: Path) -> Any:
    """The model in transformers, all of it in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch.nn.Module.float(model)
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_linears_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    make_hf(tmp_path, **KINDS[kind])
    source = open_model(tmp_path)
    model = load_reference(tmp_path)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for index in range(source.config.num_layers):
            layer = source.layer(index)
            for projection, name in HF_MODULES.items():
                matrix = getattr(layer, projection)
                module = model.get_submodule(f"model.layers.{index}.{name}")
                x = torch.randn((3, matrix.codes.shape[1]), generator=generator)
                scale = 127 / x.abs().max(dim=-1, keepdim=True).values
                quantised = ((x * scale).round() / scale).numpy().astype(np.float64)
                expected = quantised @ matrix.codes.T.astype(np.float64) * matrix.scale
                np.testing.assert_allclose(module(x).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_moderate(kind: str, tmp_path: Path) -> None:
    make_hf(tmp_path, **KINDS[kind])
    model = load_reference(tmp_path)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        output = model(torch.arange(3, 20)[None], output_hidden_states=True)
    assert 0.5 < output.logits.std() < 5
    assert all(0.1 < hidden.std() < 10 for hidden in output.hidden_states)


@pytest.mark.parametrize("tie", [False, True])
def test_tables_and_norms_are_those_of_transformers(tie: bool, tmp_path: Path) -> None:
    make_hf(tmp_path, tie=tie)
    source = open_model(tmp_path)
    model = load_reference(tmp_path)
    layer = source.layer(1)
    reference = model.model.layers[1]
    np.testing.assert_array_equal(layer.attn_sub_norm, reference.self_attn.attn_sub_norm.weight.detach().numpy())
    np.testing.assert_array_equal(layer.ffn_sub_norm, reference.mlp.ffn_sub_norm.weight.detach().numpy())
    np.testing.assert_array_equal(layer.input_norm, reference.input_layernorm.weight.detach().numpy())
    np.testing.assert_array_equal(layer.post_attention_norm, reference.post_attention_layernorm.weight.detach().numpy())
    np.testing.assert_array_equal(source.final_norm(), model.model.norm.weight.detach().numpy())
    table = source.head() if not tie else source.embedding()
    assert table is not None and table.dtype == "bf16"
    bits = torch.from_numpy(np.array(table.data).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(bits.float(), model.lm_head.weight)
