"""What broke for users of other programs, by its symptom, in every format that tritune reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oracles import harness
from tiny_adapters import Base, random_adapter, tiny_base
from tiny_models import make_hf
from tritune.backends.numpy import NumpyBackend
from tritune.errors import AdapterError, ConfigError
from tritune.lora import Adapter, LoRAConfig

FORMATS = ["peft", "mlx", "gguf", "hesper"]
QV = LoRAConfig(rank=4, alpha=8, target_modules=["q_proj", "v_proj"])
BASE = tiny_base(layers=2, hidden=24)


@pytest.mark.parametrize("kind", ["peft", "mlx", "gguf"])
def test_wrong_key_prefix_loads_successfully_and_the_output_equals_the_base(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    random_adapter(BASE, QV).save(path, kind)
    if kind == "gguf":
        path.write_bytes(path.read_bytes().replace(b"blk.0.attn_q", b"blk.0.attn_x"))
        with pytest.raises(AdapterError, match=r"no place in the model for 2 tensors \(first: blk\.0\.attn_x\."):
            Adapter.load(path, BASE)
        return
    file = path / ("adapter_model.safetensors" if kind == "peft" else "adapters.safetensors")
    save_file({"language_model." + name: values for name, values in load_file(file).items()}, file)
    with pytest.raises(AdapterError, match=r"no place in the model for 8 tensors \(first: language_model\."):
        Adapter.load(path, BASE)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rslora", [False, True])
def test_alpha_ignored_raw_alpha_used_as_scale_rslora_served_as_alpha_over_r(
    kind: str, rslora: bool, tmp_path: Path
) -> None:
    """What is loaded from each format gives the logits of W·x + s·B·A·x: the base's with s·B·A written into W."""
    make_hf(tmp_path / "base", hidden=32, vocab=64)
    ours = harness.Ours(NumpyBackend(np.float64), tmp_path / "base", "float")
    adapter = harness.random_adapter(ours.config, replace(QV, rslora=rslora), b_std=0.3)
    ids = [3, 9, 60, 1, 30, 30]
    scale = 8 / 2 if rslora else 8 / 4
    expected = merged_logits(ours, adapter, scale, ids)
    assert harness.error(merged_logits(ours, adapter, 8.0, ids), expected) > 0.01
    assert harness.error(merged_logits(ours, adapter, 6 - scale, ids), expected) > 0.01  # the other way to scale
    adapter.save(tmp_path / "x", kind)
    loaded = Adapter.load(tmp_path / "x", harness.Named(ours.config))
    assert harness.error(ours.logits(ids, loaded), expected) <= harness.EXACT


def merged_logits(ours: harness.Ours, adapter: Adapter, scale: float, ids: list[int]) -> harness.Floats:
    """Logits of the base whose linears hold W + scale·B·A; computed with matrices of floats, no adapter anywhere."""
    from tritune.models import dense

    class Merged(dense.DenseModel):
        def __init__(self) -> None:
            self.config = ours.config

        def _read(self, name: str) -> harness.Floats:
            if name == "model.norm.weight":
                return ours.source.final_norm()
            layer, module = int(name.split(".")[2]), name.split(".")[-2]
            norms = {"input_layernorm": "input_norm", "post_attention_layernorm": "post_attention_norm"}
            found = getattr(ours.source.layer(layer), norms.get(module, module.removesuffix("_proj")))
            if not module.endswith("_proj"):
                return found
            weight = adapter.layers[layer].projections.get(module)
            whole = found.codes * found.scale
            return whole if weight is None else whole + scale * weight.b.astype(np.float64) @ weight.a

        def logits(self, tokens: list[int]) -> harness.Floats:  # type: ignore[override]
            table = dense.widen(ours.source.embedding().data, np.dtype(np.float64))
            x = table[tokens]
            for layer in range(self.config.num_layers):
                x = self._block(layer, x)
            return dense.rms_norm(x, self._read("model.norm.weight"), self.config.rms_norm_eps) @ table.T

    return Merged().logits(ids)


def test_layers_to_transform_1_also_hits_10_and_nothing_matches_and_nobody_says_so(tmp_path: Path) -> None:
    base = tiny_base(layers=12)
    adapter = random_adapter(base, LoRAConfig(rank=2, layers=(1,), target_modules=["q_proj"]))
    assert [target.layer for target in adapter.targets] == [1]
    adapter.save(tmp_path / "x")
    config = json.loads((tmp_path / "x" / "adapter_config.json").read_text())
    assert config["layers_to_transform"] == [1]
    assert [target.layer for target in Adapter.load(tmp_path / "x", base).targets] == [1]
    with pytest.raises(ConfigError, match="no linear of the model matches 'wq'"):
        Adapter.create(base, LoRAConfig(target_modules=["wq", "q_proj"]))
    with pytest.raises(ConfigError, match="no linear of the model matches"):
        Adapter.create(base, LoRAConfig(target_modules=r".*\.1[0-9]\.q_proj"))


@pytest.mark.parametrize("kind", FORMATS)
def test_adapter_of_another_model_size_raw_size_mismatch_deep_in_the_loader(kind: str, tmp_path: Path) -> None:
    config = replace(BASE.config, num_heads=4, hidden_size=32)  # hidden 32 = 4 heads × 8
    random_adapter(Base(config), QV).save(tmp_path / "x", kind)
    message = "made for hidden 32, this base has 24" if kind != "hesper" else "this base's hidden 24, .*another base"
    with pytest.raises(AdapterError, match=message) as caught:
        Adapter.load(tmp_path / "x", BASE)
    assert "\n" not in str(caught.value)
