"""Combined adapters are what peft's add_weighted_adapter makes, and what peft computes with several active ones."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch

from oracles.harness import EXACT, Ours, error, random_adapter
from oracles.reference import identity, rounding
from tritune.backends.base import Backend
from tritune.lora import Adapter, LoRAConfig, as_one, combine_adapters

CLOSE = 1e-4
SAME_RANK = [
    LoRAConfig(rank=4, alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]),
    LoRAConfig(rank=4, alpha=3, rslora=True, target_modules=["q_proj", "up_proj"]),
    LoRAConfig(rank=4, alpha=16),
]
OTHER_RANKS = [LoRAConfig(rank=4, alpha=8), LoRAConfig(rank=2, alpha=8, target_modules=["q_proj", "up_proj"])]
CASES: dict[str, tuple[list[LoRAConfig], list[float], dict[str, Any]]] = {
    "linear": (SAME_RANK, [0.7, 0.3, 1.0], {"combination_type": "linear"}),
    "linear, negative": (SAME_RANK[:2], [1.0, -0.5], {"combination_type": "linear"}),
    "cat": (OTHER_RANKS, [0.7, -0.3], {"combination_type": "cat"}),
    "svd": (OTHER_RANKS, [0.7, 0.3], {"combination_type": "svd"}),
    "svd, rank 3": (SAME_RANK, [0.7, 0.3, -1.0], {"combination_type": "svd", "svd_rank": 3}),
    "ties": (SAME_RANK, [0.7, 0.3, 1.0], {"combination_type": "ties", "density": 0.5}),
    "ties, negative, dense": (SAME_RANK, [1.0, -0.3, 1.0], {"combination_type": "ties", "density": 1.0}),
}


def peft_model(reference: Any, adapters: list[Adapter], folder: Path) -> Any:
    """peft's model with the adapters loaded under the names 0, 1, …"""
    model: Any = None
    for index, adapter in enumerate(adapters):
        path = folder / str(index)
        adapter.save(path)
        if model is None:
            model = peft.PeftModel.from_pretrained(copy.deepcopy(reference.model), path, adapter_name="0")
        else:
            model.load_adapter(path, adapter_name=str(index))
    return model


@pytest.mark.parametrize("name", CASES)
def test_the_corrections_are_those_of_peft(name: str, make, tmp_path: Path) -> None:
    configs, weights, options = CASES[name]
    directory, reference = make(hidden=32)
    config = config_of(directory)
    adapters = [random_adapter(config, lora, seed=i, b_std=0.3) for i, lora in enumerate(configs)]
    model = peft_model(reference, adapters, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of a density of 1
        model.add_weighted_adapter([str(i) for i in range(len(adapters))], weights, adapter_name="sum", **options)
    found = combine_adapters(list(zip(adapters, weights, strict=True)), **options)
    expected = {
        path: module.get_delta_weight("sum").detach().numpy()
        for path, module in model.base_model.model.named_modules()
        if isinstance(module, peft.tuners.lora.LoraLayer) and "sum" in module.lora_A
    }
    assert len(expected) == len(found.targets)
    for target in found.targets:
        weight = found.layers[target.layer].projections[target.projection]
        path = next(path for path in expected if path.endswith(f"layers.{target.layer}.{holder(target.projection)}"))
        assert error(weight.scale * weight.b @ weight.a, expected[path]) <= CLOSE, path


def holder(projection: str) -> str:
    return ("mlp." if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn.") + projection


def config_of(directory: Path) -> Any:
    from tritune.models.weights import open_model

    return open_model(directory).config


def test_several_active_adapters_give_the_logits_of_peft(backend: Backend, make, tmp_path: Path) -> None:
    directory, reference = make(hidden=32)
    ours = Ours(backend, directory, "float")
    adapters = [random_adapter(ours.config, lora, seed=i, b_std=0.3) for i, lora in enumerate(OTHER_RANKS)]
    weights = [0.7, 0.3]
    model = peft_model(reference, adapters, tmp_path)
    model.base_model.set_adapter(["0", "1"])
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            for index, weight in enumerate(weights):
                if str(index) in module.scaling:
                    module.scaling[str(index)] *= weight
    ids = [5, 40, 41, 7, 99, 12]
    with rounding(identity), torch.no_grad():
        expected = model.eval()(input_ids=torch.tensor([ids])).logits[0].numpy()
    assert error(reference.logits(ids, None, identity), expected) > 0.02
    found = ours.logits(ids, as_one(list(zip(adapters, weights, strict=True))))
    assert error(found, expected) <= EXACT
    for index, adapter in enumerate(adapters):
        assert error(ours.logits(ids, adapter), expected) > 0.01, index
    assert np.isfinite(found).all()
