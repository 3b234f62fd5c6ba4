"""GGUF LoRA files: what llama.cpp reads in them is the adapter, and what llama.cpp's converter writes is read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from oracles import harness
from tiny_adapters import Base, random_adapter, same, tiny_base
from tiny_gguf import TYPES, Tensors, gguf_bytes, interleave_rows, make_gguf
from tritune.backends.numpy import NumpyBackend
from tritune.errors import AdapterError
from tritune.lora import Adapter, LoRAConfig

LLAMA = tiny_base(hidden=24)
BITNET = Base(replace(LLAMA.config, model_type="bitnet", activation="relu2", sub_norms=True))
CONFIGS = {
    "all": LoRAConfig(rank=4, alpha=8),
    "rslora": LoRAConfig(rank=4, alpha=8, rslora=True),
    "alphas": LoRAConfig(rank=4, alpha=8, alpha_pattern={"k_proj": 3, "1.mlp.up_proj": 0}),
    "ranks": LoRAConfig(rank=4, alpha=8, rank_pattern={"q_proj": 2}, alpha_pattern={"v_proj": 5}, rslora=True),
    "alpha 0": LoRAConfig(rank=4, alpha=0),
    "uneven": LoRAConfig(rank=2, alpha=3, target_modules=r"model\.layers\.(0\.self_attn\.[qk]|2\.mlp\.up)_proj"),
}
MODULES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def llama_cpp_delta(reader: GGUFReader, name: str) -> np.ndarray:
    """What llama.cpp adds to a weight: scale = alpha / rank if alpha else 1, on the tensors as they lie."""
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    a, b = tensors[name + ".lora_a"], tensors[name + ".lora_b"]
    alpha = reader.fields["adapter.lora.alpha"].contents()
    return (alpha / b.shape[1] if alpha else 1.0) * b @ a


@pytest.mark.parametrize("base", [LLAMA, BITNET], ids=["llama", "bitnet"])
@pytest.mark.parametrize("name", CONFIGS)
def test_alpha_ignored_or_rslora_served_as_alpha_over_r(name: str, base: Base, tmp_path: Path) -> None:
    adapter = random_adapter(base, CONFIGS[name])
    adapter.save(tmp_path / "a.gguf", "gguf")
    reader = GGUFReader(tmp_path / "a.gguf")
    assert len(reader.tensors) == 2 * len(adapter.targets)
    for target in adapter.targets:
        weight = adapter.layers[target.layer].projections[target.projection]
        delta = weight.scale * weight.b @ weight.a
        if base is LLAMA and target.projection in ("q_proj", "k_proj"):
            delta = interleave_rows(delta, 3 if target.projection == "q_proj" else 1)
        found = llama_cpp_delta(reader, f"blk.{target.layer}.{MODULES[target.projection]}.weight")
        np.testing.assert_allclose(found, delta, rtol=1e-5, atol=1e-6)
    loaded = Adapter.load(tmp_path / "a.gguf", base)
    for target in adapter.targets:
        ours = adapter.layers[target.layer].projections[target.projection]
        theirs = loaded.layers[target.layer].projections[target.projection]
        np.testing.assert_allclose(
            theirs.scale * theirs.b @ theirs.a, ours.scale * ours.b @ ours.a, rtol=1e-5, atol=1e-6
        )
    if name in ("all", "uneven"):  # nothing had to be multiplied into B
        assert same(loaded, adapter)


def test_metadata_are_those_of_llama_cpp(tmp_path: Path) -> None:
    random_adapter(BITNET, LoRAConfig(rank=4, alpha=6)).save(tmp_path / "my-adapter.gguf", "gguf")
    fields = {name: field.contents() for name, field in GGUFReader(tmp_path / "my-adapter.gguf").fields.items()}
    assert {name: value for name, value in fields.items() if not name.startswith("GGUF.")} == {
        "general.architecture": "bitnet-b1.58",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 6.0,
        "general.name": "my-adapter",
        "general.base_model.count": 1,
        "general.base_model.0.name": "org/tiny",
        "general.file_type": 0,
        "general.quantization_version": 2,
    }


@pytest.mark.parametrize(
    ("change", "architecture"),
    [
        ({"model_type": "bitnet", "activation": "relu2"}, "bitnet-b1.58"),
        ({"model_type": "bitnet", "activation": "silu"}, "bitnet"),
        ({"model_type": "llama", "sub_norms": True}, "bitnet"),
        ({"model_type": "llama"}, "llama"),
        ({"model_type": "bitnet-25"}, "bitnet-25"),
    ],
)
def test_architecture_is_that_of_the_base_file(change: dict[str, Any], architecture: str, tmp_path: Path) -> None:
    base = Base(replace(LLAMA.config, **change))
    random_adapter(base).save(tmp_path / "a", "gguf")
    assert GGUFReader(tmp_path / "a").fields["general.architecture"].contents() == architecture
    assert same(Adapter.load(tmp_path / "a", base), random_adapter(base))


@pytest.mark.parametrize("arch", ["llama", "bitnet-b1.58"])
def test_logits_are_the_same_after_export_and_import(arch: str, tmp_path: Path) -> None:
    make_gguf(tmp_path / "base.gguf", arch=arch, vocab=96)
    model = harness.Ours(NumpyBackend(), tmp_path / "base.gguf", "float")
    lora = LoRAConfig(rank=4, alpha=2, rslora=True, rank_pattern={"k_proj": 3})
    adapter = harness.random_adapter(model.config, lora, b_std=0.1)
    adapter.save(tmp_path / "adapter.gguf", "gguf")
    loaded = Adapter.load(tmp_path / "adapter.gguf", Base(model.config, "tiny"))
    tokens = [5, 9, 60, 3, 3, 17]
    expected = model.logits(tokens, adapter)
    assert harness.error(model.logits(tokens), expected) > 0.02
    assert harness.error(model.logits(tokens, loaded), expected) <= harness.EXACT


def adapter_file(tensors: Tensors | None = None, **metadata: Any) -> bytes:
    """A file as a converter could write it, with q_proj of layer 0 of LLAMA."""
    keys = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 8.0,
    } | {name.replace("__", "."): value for name, value in metadata.items()}
    good = {"blk.0.attn_q.weight.lora_a": matrix(4, 24), "blk.0.attn_q.weight.lora_b": matrix(24, 4)}
    kept = {name: value for name, value in keys.items() if value is not None}
    return gguf_bytes(kept, good if tensors is None else tensors)


def matrix(rows: int, columns: int, kind: str = "f32") -> tuple[int, tuple[int, ...], bytes]:
    values = np.random.default_rng(0).standard_normal((rows, columns))
    data = values.astype(np.float16 if kind == "f16" else np.float32)
    return TYPES[kind], (rows, columns), data.tobytes()


@pytest.mark.parametrize("alpha", [0.0, None])
def test_alpha_zero_or_none_means_a_scale_of_one(alpha: float | None, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(adapter_file(adapter__lora__alpha=alpha))
    assert [target.scale for target in Adapter.load(tmp_path / "a", LLAMA).targets] == [1.0]


def test_a_small_file_that_would_be_large_in_memory_is_refused(tmp_path: Path) -> None:
    rank = 40_000
    tensors = {f"blk.{n}.{m}.weight.lora_{x}": matrix(*shape)
               for n in range(3) for m, rows in (("attn_q", 24), ("attn_output", 24), ("ffn_gate", 48))
               for x, shape in (("a", (1, 24)), ("b", (rows, 1)))}  # fmt: skip
    big = {"blk.0.ffn_up.weight.lora_a": matrix(rank, 24), "blk.0.ffn_up.weight.lora_b": matrix(48, rank)}
    deep = replace(LLAMA.config, num_layers=300)
    more = {
        name.replace("blk.1", f"blk.{n}"): tensors[name] for n in range(3, 300) for name in tensors if "blk.1" in name
    }
    (tmp_path / "a").write_bytes(adapter_file(tensors | more | big))
    tracemalloc.start()
    with pytest.raises(AdapterError, match=r"ranks from 1 to 40000 in one adapter, which would take \d+\.\d GiB"):
        Adapter.load(tmp_path / "a", Base(deep))
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def test_float16_is_read(tmp_path: Path) -> None:
    tensors = {"blk.1.attn_v.weight.lora_a": matrix(2, 24, "f16"), "blk.1.attn_v.weight.lora_b": matrix(8, 2)}
    (tmp_path / "a").write_bytes(adapter_file(tensors))
    weight = Adapter.load(tmp_path / "a", LLAMA).layers[1].projections["v_proj"]
    np.testing.assert_array_equal(
        weight.a, np.frombuffer(tensors["blk.1.attn_v.weight.lora_a"][2], "<f2").reshape(2, 24)
    )
    assert weight.scale == 4.0


A, B = "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"
WRONG: list[tuple[Callable[[], bytes], str]] = [
    (lambda: adapter_file(general__type="model"), "a GGUF file of type model; expected adapter"),
    (lambda: adapter_file(general__type=None), "a GGUF file of type model; expected adapter"),
    (lambda: adapter_file(adapter__type="control_vector"), "adapter.type is 'control_vector'; expected 'lora'"),
    (lambda: adapter_file(adapter__lora__alpha=float("nan")), "adapter.lora.alpha is nan; expected a number >= 0"),
    (lambda: adapter_file(general__architecture="bitnet"), "made for a base of architecture bitnet; this base"),
    (lambda: adapter_file(general__architecture="qwen2"), "made for a base of architecture qwen2; this base is llama"),
    (lambda: adapter_file(adapter__alora__invocation_tokens=[1, 2]), "activated LoRA is not supported"),
    (lambda: adapter_file({}), "no tensors; expected names such as blk.0.attn_q.weight.lora_a"),
    (lambda: adapter_file({A: matrix(4, 24)}), f"tensor {A} lacks its other half, lora_b"),
    (lambda: adapter_file({B: matrix(24, 4)}), f"tensor {B} lacks its other half, lora_a"),
    (lambda: adapter_file({A: matrix(4, 32), B: matrix(24, 4)}), "made for hidden 32, this base has 24"),
    (lambda: adapter_file({A: matrix(4, 24), B: matrix(24, 3)}), r"has shape [24, 3]; expected [24, 4]"),
    (lambda: adapter_file({A: matrix(0, 24), B: matrix(24, 0)}), "rank 0"),
    (lambda: adapter_file({"token_embd.weight.lora_a": matrix(4, 24)}), "changes of the embedding are not supported"),
    (lambda: adapter_file({A.replace("0", "3"): matrix(4, 24)}), "no place in the model"),
    (lambda: adapter_file({"blk.0.attn_norm.weight": matrix(1, 24)}), "changes of a norm are not supported"),
    (lambda: adapter_file({A: matrix(4, 24), B: (0, (24, 4), np.full((24, 4), np.nan, "f4").tobytes())}), "not finite"),
    (lambda: adapter_file()[:-9], "truncated"),
    (lambda: adapter_file()[:40], "truncated or damaged"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_wrong_files_are_refused_in_one_line(content: Callable[[], bytes], message: str, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(content())
    with pytest.raises(AdapterError) as caught:
        Adapter.load(tmp_path / "a.gguf", LLAMA)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "a.gguf"))
    assert "\n" not in str(caught.value)


def test_another_base_is_a_warning(tmp_path: Path) -> None:
    random_adapter(LLAMA).save(tmp_path / "a", "gguf")
    with pytest.warns(UserWarning, match="made for org/tiny, loaded on org/other"):
        Adapter.load(tmp_path / "a", Base(LLAMA.config, "org/other"))


def test_a_scale_that_float32_cannot_hold_is_not_saved(tmp_path: Path) -> None:
    adapter = random_adapter(LLAMA, LoRAConfig(rank=4, alpha=1e-38, alpha_pattern={"q_proj": 1e38}))
    with pytest.raises(AdapterError, match=r"not saved: a scale of .* makes values that float32 cannot hold"):
        adapter.save(tmp_path / "a", "gguf")
    assert not (tmp_path / "a").exists()
