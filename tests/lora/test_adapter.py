"""Adapter: names, views and sizes of its parameters."""

from __future__ import annotations

import numpy as np

from tiny_adapters import random_adapter, tiny_base
from tritune.lora import Adapter, LoRAConfig

BASE = tiny_base()
PATTERNS = LoRAConfig(rank=4, alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], rank_pattern={"q_proj": 2})


def test_tensors_have_the_names_of_peft_and_the_shapes_of_the_model() -> None:
    adapter = Adapter.create(BASE, LoRAConfig(rank=4, target_modules=["q_proj", "down_proj"], layers=(2,)))
    prefix = "base_model.model.model.layers.2."
    assert {name: tensor.shape for name, tensor in adapter.tensors().items()} == {
        prefix + "self_attn.q_proj.lora_A.weight": (4, 36),
        prefix + "self_attn.q_proj.lora_B.weight": (24, 4),
        prefix + "mlp.down_proj.lora_A.weight": (4, 48),
        prefix + "mlp.down_proj.lora_B.weight": (36, 4),
    }
    assert adapter.num_parameters == 4 * (36 + 24 + 48 + 36)
    assert adapter.base_model == "org/tiny"


def test_ranks_of_a_pattern_are_not_padded_in_what_a_user_sees() -> None:
    adapter = random_adapter(BASE, PATTERNS)
    weight = adapter.layers[1].projections["q_proj"]
    assert (weight.a.shape, weight.b.shape) == ((2, 36), (24, 2))
    assert (weight.rank, weight.scale, weight.in_dim, weight.out_dim) == (2, 4.0, 36, 24)
    assert adapter.layers[1].projections["down_proj"].scale == 2.0
    assert adapter.num_parameters == 3 * (2 * (36 + 24) + 4 * (36 + 8) + 4 * (48 + 36))
    # All that is not in a tensor is padding, and zero.
    assert np.count_nonzero(adapter.parameters) == adapter.num_parameters


def test_views_are_of_the_flat_array() -> None:
    adapter = random_adapter(BASE, PATTERNS)
    adapter.layers[0].projections["v_proj"].b[3, 1] = 42
    assert adapter.tensors()["base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight"][3, 1] == 42
    assert 42 in adapter.parameters
    assert set(adapter.layers[0].projections) == {"q_proj", "v_proj", "down_proj"}


def test_a_copy_is_apart() -> None:
    adapter = random_adapter(BASE, PATTERNS)
    other = adapter.copy()
    assert other.content_key() == adapter.content_key()
    other.parameters[0] += 1
    assert other.content_key() != adapter.content_key()
    assert other.parameters[0] != adapter.parameters[0]


def test_content_key_tells_scales_apart() -> None:
    plain = Adapter.create(BASE, LoRAConfig(rank=4, alpha=8))
    assert plain.content_key() == Adapter.create(BASE, LoRAConfig(rank=4, alpha=8)).content_key()
    assert plain.content_key() != Adapter.create(BASE, LoRAConfig(rank=4, alpha=9)).content_key()
    assert plain.content_key() != Adapter.create(BASE, LoRAConfig(rank=4, alpha=8, rslora=True)).content_key()


def test_gradients_and_moments_are_named_like_the_parameters() -> None:
    adapter = random_adapter(BASE, PATTERNS)
    grad, m, v = (adapter.parameters * factor for factor in (2, 3, 4))
    views = adapter.grad_views(grad)
    moments = adapter.adam_views(m, v, step=5)
    assert views.flat is grad and moments.m is m and moments.v is v and moments.step == 5
    for layer, pieces in enumerate(adapter.layers):
        for name, weight in pieces.projections.items():
            piece, state = views.layers[layer].projections[name], moments.layers[layer].projections[name]
            np.testing.assert_array_equal(piece.da, 2 * weight.a)
            np.testing.assert_array_equal(piece.db, 2 * weight.b)
            np.testing.assert_array_equal(state.m_a, 3 * weight.a)
            np.testing.assert_array_equal(state.m_b, 3 * weight.b)
            np.testing.assert_array_equal(state.v_a, 4 * weight.a)
            np.testing.assert_array_equal(state.v_b, 4 * weight.b)
            assert np.shares_memory(piece.da, grad) and np.shares_memory(state.v_b, v)
    named = adapter.tensors(grad)
    assert sum(int(np.count_nonzero(tensor)) for tensor in named.values()) == adapter.num_parameters
