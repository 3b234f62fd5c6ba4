"""export_dense: what it writes, what it measures, and that nothing ternary comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tritune
from tiny_adapters import tiny_base
from tiny_models import make_hf
from tiny_text import make_text_model
from tritune.errors import AdapterError, InputError, ModelFileError
from tritune.export import export_dense
from tritune.lora import Adapter, LoRAConfig
from tritune.models.dense import DenseModel
from tritune.models.weights import open_model, quantise_master


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tritune.Model:
    return tritune.load(make_text_model(tmp_path_factory.mktemp("m") / "tiny-model"), "numpy")


@pytest.fixture(scope="module")
def adapter(model: tritune.Model) -> Adapter:
    made = Adapter.create(model, LoRAConfig(rank=4, alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    for name, tensor in made.tensors().items():
        if ".lora_B." in name:
            tensor[...] = np.random.default_rng(len(name)).normal(0, 0.05, tensor.shape)
    return made


def test_what_is_measured_is_so(model: tritune.Model, adapter: Adapter, tmp_path: Path) -> None:
    ids = model.tokenizer.encode_prompt("hello there, how are you today?")
    done = export_dense(model, tmp_path / "dense", adapter, tokens=ids)
    live, dense = model.logits(ids, adapter), DenseModel(tmp_path / "dense").logits(ids)
    assert done.difference == pytest.approx(np.linalg.norm(dense - live) / np.linalg.norm(live), rel=1e-5)
    assert done.largest == pytest.approx(np.abs(dense - live).max(), rel=1e-5)
    assert (done.tokens, done.same_token) == (len(ids), (dense.argmax(-1) == live.argmax(-1)).sum())
    assert done.adapter_effect == pytest.approx(np.linalg.norm(model.logits(ids) - live) / np.linalg.norm(live))
    assert 0 < done.difference < 0.05 < done.adapter_effect
    assert done.nbytes == sum(file.stat().st_size for file in (tmp_path / "dense").glob("*.safetensors"))
    base = export_dense(model, tmp_path / "base", tokens=ids)
    assert base.adapter_effect == 0 and base.difference < 0.05
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "dense"]


def test_several_adapters_are_exported_as_their_sum(model: tritune.Model, adapter: Adapter, tmp_path: Path) -> None:
    ids = [5, 60, 70, 9]
    export_dense(model, tmp_path / "two", [(adapter, 0.5), (adapter, 0.5)], tokens=ids)
    export_dense(model, tmp_path / "one", adapter, tokens=ids)
    two, one = (DenseModel(tmp_path / name).logits(ids) for name in ("two", "one"))
    np.testing.assert_allclose(two, one, rtol=0.01, atol=0.01)


def test_tokenizer_and_settings_come_along(model: tritune.Model, adapter: Adapter, tmp_path: Path) -> None:
    export_dense(model, tmp_path / "dense", adapter)
    base = model.source.directory
    assert base is not None
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "dense" / name).read_bytes() == (base / name).read_bytes()
    assert "quantization_config" not in json.loads((tmp_path / "dense" / "config.json").read_text())


def test_merged_into_a_quantised_base_the_fine_tuning_vanishes(
    model: tritune.Model, adapter: Adapter, tmp_path: Path
) -> None:
    """Why there is no ternary export: rounded back, nearly all codes are the base's own; nothing does it by itself."""
    export_dense(model, tmp_path / "dense", adapter)
    with pytest.raises(
        ModelFileError, match="dense: a dense export of tritune; rounding it back to ternary would lose"
    ):
        tritune.load(tmp_path / "dense", "numpy")
    weight = adapter.layers[0].projections["q_proj"]
    matrix = model.source.layer(0).q
    merged = matrix.codes * np.float32(matrix.scale) + np.float32(weight.scale) * weight.b @ weight.a
    assert np.mean(quantise_master(merged).codes != matrix.codes) < 0.05
    assert export_dense(model, tmp_path / "again", adapter).adapter_effect > 0.05


def test_a_place_that_holds_something_is_left_alone(model: tritune.Model, adapter: Adapter, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("mine")
    with pytest.raises(InputError, match="x: cannot be written: it is there already"):
        export_dense(model, tmp_path / "x", adapter)
    assert [p.name for p in tmp_path.rglob("*")] == ["x", "mine"]


def test_a_failed_export_leaves_nothing(model: tritune.Model, adapter: Adapter, tmp_path: Path) -> None:
    broken = adapter.copy()
    broken.layers[1].projections["down_proj"].b[0, 0] = np.inf
    with pytest.raises(AdapterError, match=r"not exported: the correction of layer 1, down_proj is not finite"):
        export_dense(model, tmp_path / "x", broken)
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_of_another_size_is_refused(model: tritune.Model, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="made for hidden_size 36, this base has 32"):
        export_dense(model, tmp_path / "x", Adapter.create(tiny_base()))


def test_a_shape_that_transformers_has_no_class_for_is_refused(tmp_path: Path) -> None:
    from tritune.models.dense import check_dense

    make_hf(tmp_path / "odd", head_dim=12)  # 4 heads × 12, hidden 64
    with pytest.raises(ModelFileError, match="heads × head_dim is 48, hidden_size 64; a dense export needs them equal"):
        check_dense(open_model(tmp_path / "odd").config)


def test_memory_of_writing_is_that_of_a_layer(model: tritune.Model, tmp_path: Path) -> None:
    import tracemalloc

    from tritune.models.dense import write_dense

    make_hf(tmp_path / "deep", layers=24, hidden=64, ffn=256, vocab=4000)
    source = open_model(tmp_path / "deep")
    (tmp_path / "dense").mkdir()
    tracemalloc.start()
    write_dense(source, tmp_path / "dense", lambda _layer, _projection: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    written = sum(file.stat().st_size for file in (tmp_path / "dense").glob("*.safetensors"))
    assert written > 3_000_000
    assert peak < written / 2
