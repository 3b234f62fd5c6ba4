"""Adapters travel both ways between this library and peft, with equal tensors and scales."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_adapters import Base, random_adapter, tiny_base
from tritune.lora import Adapter, LoRAConfig
from tritune.models.linears import module_path

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

BASES = {
    "llama": tiny_base(layers=12),
    # transformers gives a BitNet model no head size of its own.
    "bitnet": tiny_base(layers=3, hidden=24, model_type="bitnet"),
}
Facts = dict[str, tuple[np.ndarray, np.ndarray, float]]
"""Path of a module -> (A, B, scale)."""


def dense_model(base: Base) -> Any:
    """A transformers model of the base's shape with ordinary linears."""
    c = base.config
    shape = {
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
    }
    if c.model_type == "bitnet":
        return transformers.BitNetForCausalLM(transformers.BitNetConfig(**shape, pad_token_id=0))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, head_dim=c.head_dim))


def facts_of_peft(model: Any) -> Facts:
    """What peft's layers hold and multiply with."""
    facts: Facts = {}
    for path, module in model.base_model.model.named_modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            a, b = (part["default"].weight.detach().numpy() for part in (module.lora_A, module.lora_B))
            facts[path] = (a, b, module.scaling["default"])
    return facts


def facts_of(adapter: Adapter) -> Facts:
    facts: Facts = {}
    for target in adapter.targets:
        weight = adapter.layers[target.layer].projections[target.projection]
        facts[module_path(target.layer, target.projection)] = (weight.a, weight.b, weight.scale)
    return facts


def assert_equal(ours: Facts, theirs: Facts) -> None:
    assert ours and ours.keys() == theirs.keys()
    for path, (a, b, scale) in ours.items():
        np.testing.assert_array_equal(a, theirs[path][0])
        np.testing.assert_array_equal(b, theirs[path][1])
        assert scale == pytest.approx(theirs[path][2], rel=1e-12)


OURS = {
    "default": LoRAConfig(),
    "one rank": LoRAConfig(rank=1, alpha=0.5, target_modules=["q_proj", "v_proj"], dropout=0.25),
    "rslora": LoRAConfig(rank=8, alpha=8, rslora=True),
    "layer 1": LoRAConfig(rank=4, alpha=8, target_modules=["q_proj", "down_proj"], layers=(1,)),
    "all-linear in two layers": LoRAConfig(rank=4, alpha=8, layers=(0, 2)),
    "uneven": LoRAConfig(rank=4, alpha=8, target_modules=r"model\.layers\.(1\.self_attn\.[qk]|2\.mlp\.up)_proj"),
    # Above 20 entries peft looks for shorter names of its own.
    "uneven and many": LoRAConfig(rank=2, alpha=8, target_modules=r".*\.(\d+\.self_attn\.[qkvo]|[12]\.mlp\.\w+)_proj"),
    "patterns": LoRAConfig(
        rank=4,
        alpha=8,
        rank_pattern={r"layers\.1\..*": 2, "q_proj": 6},
        alpha_pattern={r".*\.2\.mlp.*": 3.5, "k_proj": 1},
    ),
    "patterns, rslora, layers": LoRAConfig(
        rank=4,
        alpha=8,
        rslora=True,
        layers=(1, 2),
        target_modules=["k_proj", "o_proj"],
        rank_pattern={"1.self_attn.k_proj": 9},
        alpha_pattern={"1.self_attn.k_proj": 5, "o_proj": 2},
    ),
}


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("name", OURS)
def test_peft_loads_what_is_saved_here(kind: str, name: str, tmp_path: Path) -> None:
    adapter = random_adapter(BASES[kind], OURS[name])
    adapter.save(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(dense_model(BASES[kind]), tmp_path)
    assert [str(w.message) for w in caught if not issubclass(w.category, DeprecationWarning | FutureWarning)] == []
    assert_equal(facts_of(adapter), facts_of_peft(model))
    assert model.peft_config["default"].lora_dropout == OURS[name].dropout


THEIRS: dict[str, dict[str, Any]] = {
    "r 1": {"r": 1, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]},
    "r 8": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "lora_dropout": 0.1},
    "r 64": {"r": 64, "lora_alpha": 16, "target_modules": ["k_proj", "down_proj"]},
    "r 1, rslora": {"r": 1, "lora_alpha": 3, "use_rslora": True, "target_modules": ["o_proj"]},
    "r 8, rslora": {"r": 8, "lora_alpha": 16, "use_rslora": True, "target_modules": "all-linear"},
    "r 64, rslora": {"r": 64, "lora_alpha": 16, "use_rslora": True, "target_modules": ["gate_proj"]},
    "regex": {"r": 4, "target_modules": r".*\.[12]\.(self_attn\.q|mlp\.up)_proj"},
    "layers_to_transform": {"r": 4, "target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1]},
    "layers_pattern": {
        "r": 4,
        "target_modules": ["q_proj"],
        "layers_to_transform": [0, 2],
        "layers_pattern": "layers",
    },
    "excluded": {"r": 4, "target_modules": ["q_proj", "k_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"]},
    "excluded by regex": {"r": 4, "target_modules": ["q_proj"], "exclude_modules": r".*\.1\..*"},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "k_proj", "down_proj"],
        "rank_pattern": {r"layers\.1\.self_attn\.q_proj": 2, "q_proj": 3, "^model.layers.2.mlp.down_proj": 7},
        "alpha_pattern": {"model.layers.1.mlp.down_proj": 3, "self_attn.k_proj": 1.5},
    },
    "patterns, rslora": {
        "r": 4,
        "lora_alpha": 8,
        "use_rslora": True,
        "target_modules": ["q_proj", "v_proj"],
        "rank_pattern": {"v_proj": 9},
        "alpha_pattern": {"1.self_attn.q_proj": 3},
    },
    "gaussian": {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": "gaussian"},
    "orthogonal": {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": "orthogonal"},
}


def peft_adapter(kind: str, path: Path, **settings: Any) -> Any:
    """An adapter made and saved by peft, with values everywhere."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(dense_model(BASES[kind]), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_()
        model.save_pretrained(path)
    return model


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("name", THEIRS)
def test_what_peft_saves_is_loaded_here(kind: str, name: str, tmp_path: Path) -> None:
    model = peft_adapter(kind, tmp_path, **THEIRS[name])
    adapter = Adapter.load(tmp_path, BASES[kind])
    assert_equal(facts_of(adapter), facts_of_peft(model))
    assert adapter.config.dropout == THEIRS[name].get("lora_dropout", 0)


def test_bfloat16_of_peft(tmp_path: Path) -> None:
    model = peft_adapter("llama", tmp_path, r=4, target_modules=["q_proj"])
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(torch.float32)
    assert_equal(facts_of(Adapter.load(tmp_path, BASES["llama"])), facts_of_peft(model))


def test_a_round_trip_changes_nothing(tmp_path: Path) -> None:
    adapter = random_adapter(BASES["llama"], OURS["patterns"])
    adapter.save(tmp_path / "ours")
    model = peft.PeftModel.from_pretrained(dense_model(BASES["llama"]), tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    again = Adapter.load(tmp_path / "theirs", BASES["llama"])
    assert again.targets == adapter.targets
    np.testing.assert_array_equal(again.parameters, adapter.parameters)
    written = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    known = json.loads((tmp_path / "theirs" / "adapter_config.json").read_text())
    assert written.keys() <= known.keys()
    assert {key for key in written if written[key] != known[key]} <= {"target_modules", "peft_version"}
