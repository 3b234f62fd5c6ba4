"""Which linears a LoRAConfig adapts, with which ranks and scales: equal to peft's own answer."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest

from tiny_adapters import tiny_base
from tritune.errors import ConfigError
from tritune.lora import LoRAConfig
from tritune.lora.config import lora_scale, resolve_targets
from tritune.models.linears import PROJECTIONS, module_path

BASE = tiny_base(layers=12)


def resolved(config: LoRAConfig) -> dict[str, tuple[int, float]]:
    """Path -> (rank, scale)."""
    return {module_path(t.layer, t.projection): (t.rank, t.scale) for t in resolve_targets(config, BASE.config)}


def resolved_by_peft(**settings: Any) -> dict[str, tuple[int, float]]:
    """The same from peft, on a model of the same shape without weights."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    c = BASE.config
    shape = transformers.LlamaConfig(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
    )  # fmt: skip
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(transformers.LlamaForCausalLM(shape), peft.LoraConfig(**settings))
    found = {}
    for path, module in model.base_model.model.named_modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            found[path] = (module.r["default"], module.scaling["default"])
    return found


def test_default_is_all_seven_linears_at_twice_the_rank() -> None:
    config = LoRAConfig()
    assert (config.rank, config.alpha, config.dropout, config.scale) == (16, 32, 0, 2)
    assert resolved(config) == {module_path(layer, name): (16, 2.0) for layer in range(12) for name in PROJECTIONS}


CASES: dict[str, dict[str, Any]] = {
    "list": {"target_modules": ["q_proj", "v_proj"]},
    "list of path ends": {"target_modules": ["self_attn.q_proj", "layers.1.mlp.up_proj", "1.mlp.down_proj"]},
    "list of full paths": {"target_modules": ["model.layers.1.self_attn.k_proj", "model.layers.10.mlp.down_proj"]},
    "regex": {"target_modules": r".*\.layers\.[13]\.(self_attn\.[qk]|mlp\.up)_proj"},
    "regex that reads like a layer": {"target_modules": r"model\.layers\.1\..*_proj"},
    "all-linear": {"target_modules": "all-linear"},
    "layers": {"target_modules": ["q_proj", "down_proj"], "layers": (1,)},
    "two layers": {"target_modules": ["q_proj"], "layers": (10, 0)},
    "rslora": {"target_modules": ["q_proj"], "rslora": True},
    "patterns": {
        "target_modules": ["q_proj", "k_proj", "down_proj"],
        "rank_pattern": {r"layers\.1\.self_attn\.q_proj": 2, "q_proj": 3, "self_attn.k_proj": 5},
        "alpha_pattern": {"down_proj": 3.5, r"model\.layers\.1[01]\..*": 7},
    },
    "patterns with rslora": {
        "target_modules": ["q_proj", "o_proj"],
        "rslora": True,
        "rank_pattern": {"o_proj": 9},
        "alpha_pattern": {"o_proj": 6},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_targets_ranks_and_scales_are_those_of_peft(case: str) -> None:
    settings = dict(CASES[case])
    ours = resolved(LoRAConfig(rank=4, alpha=8, **settings))
    renamed = {"layers": "layers_to_transform", "rslora": "use_rslora"}
    theirs = {renamed.get(key, key): list(value) if key == "layers" else value for key, value in settings.items()}
    assert ours == resolved_by_peft(r=4, lora_alpha=8, **theirs)
    assert ours


def test_first_matching_pattern_wins_and_a_part_of_a_name_is_no_match() -> None:
    config = LoRAConfig(
        rank=4,
        target_modules=["q_proj"],
        layers=(1, 10),
        rank_pattern={"1.self_attn.q_proj": 2, "q_proj": 3},
    )
    assert {path: rank for path, (rank, _) in resolved(config).items()} == {
        "model.layers.1.self_attn.q_proj": 2,
        "model.layers.10.self_attn.q_proj": 3,
    }


def test_layer_1_is_not_layer_10() -> None:
    assert {t.layer for t in resolve_targets(LoRAConfig(layers=(1,)), BASE.config)} == {1}


def test_scale() -> None:
    assert lora_scale(8, 4, rslora=False) == 2
    assert lora_scale(8, 4, rslora=True) == 4
    assert LoRAConfig(rank=64, alpha=16, rslora=True).scale == 2


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rank": 0}, r"LoRA rank: expected an integer >= 1, found 0"),
    ({"rank": 8.5}, r"LoRA rank: .* found 8\.5"),
    ({"rank": "8"}, r"LoRA rank: .* found '8'"),
    ({"rank": True}, r"LoRA rank: .* found True"),
    ({"alpha": math.nan}, r"LoRA alpha: expected a finite number >= 0, found nan"),
    ({"alpha": math.inf}, r"LoRA alpha: .* found inf"),
    ({"alpha": 10**400}, r"LoRA alpha: .* found 1000"),
    ({"alpha": -1}, r"LoRA alpha: .* found -1"),
    ({"dropout": 1.0}, r"LoRA dropout: expected a number in \[0, 1\), found 1\.0"),
    ({"dropout": -0.1}, r"LoRA dropout"),
    ({"target_modules": None}, r"LoRA target_modules: expected a string or a list of module names, found None"),
    ({"target_modules": [1]}, r"LoRA target_modules: .* found \[1\]"),
    ({"target_modules": []}, r"LoRA target_modules \[\]: no linear of the model matches"),
    ({"target_modules": ["q_proj", "lm_head"]}, r"LoRA target_modules: no linear .* 'lm_head' \(expected q_proj, .*\)"),
    ({"target_modules": ["_proj"]}, r"target_modules"),
    ({"target_modules": "q_proj"}, r"'q_proj': no linear of the model matches"),
    ({"target_modules": "(q_proj"}, r"'\(q_proj': not a valid regular expression"),
    ({"rank_pattern": {"q_proj": 0}}, r"LoRA rank_pattern 'q_proj': expected an integer >= 1, found 0"),
    ({"alpha_pattern": {"q_proj": math.nan}}, r"LoRA alpha_pattern 'q_proj': expected a finite number"),
    ({"rank_pattern": {"_proj": 2}}, r"LoRA rank_pattern: no adapted linear matches '_proj'"),
    ({"alpha_pattern": {"(": 2}}, r"not a valid regular expression"),
    ({"layers": (12,)}, r"LoRA layers: 12 is not one of the model's layers 0 … 11"),
    ({"layers": (-1,)}, r"LoRA layers: -1 is not"),
    ({"layers": ("1",)}, r"LoRA layers: '1' is not"),
    ({"layers": ()}, r"no linear of the model matches"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_wrong_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_targets(LoRAConfig(**settings), BASE.config)
