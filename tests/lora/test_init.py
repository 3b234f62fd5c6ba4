"""The values of a fresh adapter."""

from __future__ import annotations

import numpy as np
import pytest

from tiny_adapters import tiny_base
from tritune.errors import ConfigError
from tritune.lora import Adapter, LoRAConfig
from tritune.lora.init import fill_kaiming_uniform


def test_a_is_uniform_within_one_over_the_root_of_the_inputs() -> None:
    a = np.empty((64, 400), np.float32)
    fill_kaiming_uniform(a, 0, "name")
    bound = 400**-0.5
    assert np.abs(a).max() <= bound and np.abs(a).max() > 0.99 * bound
    assert abs(a.mean()) < 0.02 * bound
    np.testing.assert_allclose(a.std(), bound / 3**0.5, rtol=0.02)


def test_the_bound_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.empty(64, 400)
    torch.nn.init.kaiming_uniform_(weight, a=5**0.5)
    a = np.empty((64, 400), np.float32)
    fill_kaiming_uniform(a, 0, "name")
    np.testing.assert_allclose(np.abs(a).max(), weight.abs().max(), rtol=0.01)


def test_b_is_zero_and_every_a_has_values_of_its_own() -> None:
    tensors = Adapter.create(tiny_base(), LoRAConfig(rank=4), seed=3).tensors()
    for name, tensor in tensors.items():
        assert tensor.any() == ("lora_A" in name)
    a = [tensor for name, tensor in tensors.items() if "lora_A" in name]
    rows = np.concatenate([tensor[:, :24] for tensor in a])
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_the_seed_decides_and_other_tensors_do_not() -> None:
    base = tiny_base()
    all_of_them = Adapter.create(base, LoRAConfig(rank=4), seed=3).tensors()
    for name, tensor in Adapter.create(base, LoRAConfig(rank=4, target_modules=["v_proj"]), seed=3).tensors().items():
        np.testing.assert_array_equal(tensor, all_of_them[name])
    for name, tensor in Adapter.create(base, LoRAConfig(rank=4), seed=4).tensors().items():
        assert np.array_equal(tensor, all_of_them[name]) == ("lora_B" in name)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed: expected an integer >= 0, found -1"):
        Adapter.create(tiny_base(), seed=-1)
