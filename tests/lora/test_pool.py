"""AdapterPool: several adapters on a device, chosen row by row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tiny_adapters import random_adapter, tiny_base
from tritune.backends.base import Backend, Rows
from tritune.backends.numpy import NumpyBackend
from tritune.errors import AdapterError
from tritune.lora import Adapter, AdapterPool, LoRAConfig
from tritune.lora.layout import GroupKey
from tritune.models.linears import linear_groups

BASE = tiny_base()
GROUPS = {group.name: group for group in linear_groups(BASE.config)}
SMALL = random_adapter(BASE, LoRAConfig(rank=2, alpha=7, target_modules=["q_proj", "v_proj"]), seed=1)
LARGE = random_adapter(BASE, LoRAConfig(rank=5, alpha=3, rank_pattern={"k_proj": 3}), seed=2)


def correction(adapter: Adapter, layer: int, group: str, x: np.ndarray) -> np.ndarray:
    """The adapter's own answer for a group: scale * B (A x) of each projection, side by side."""
    spec, projections, out = GROUPS[group], adapter.layers[layer].projections, []
    for name, rows in zip(spec.projections, spec.parts, strict=True):
        weight = projections.get(name)
        out.append(np.zeros((len(x), rows)) if weight is None else weight.scale * (x @ weight.a.T) @ weight.b.T)
    return np.concatenate(out, axis=1)


@pytest.mark.parametrize("key", [(0, "qkv"), (2, "gate_up"), (1, "down")])
def test_each_row_gets_its_own_adapter(key: GroupKey) -> None:
    backend, group = NumpyBackend(), GROUPS[key[1]]
    pool = AdapterPool.for_adapters(backend, [SMALL, LARGE])
    slot = np.array([2, 0, 1, 2, 1], np.int32)
    multiplier = np.array([1, 1, 0.5, 2, 1], np.float32)
    x = np.random.default_rng(0).standard_normal((5, group.in_features)).astype(np.float32)
    zeros = np.zeros((group.out_features, group.in_features), np.int8)
    y = backend.empty((5, group.out_features))
    unused = backend.upload(np.zeros(5, np.int32), "i32")
    rows = Rows(unused, unused, unused, unused, backend.upload(slot, "i32"), backend.upload(multiplier))
    lora = pool.lora(*key, down=backend.empty((5, len(group.parts) * 5)))
    assert lora is not None and lora.rank == 5
    weight = backend.pack_ternary([(part, 1.0) for part in np.split(zeros, np.cumsum(group.parts)[:-1])])
    backend.linear(backend.upload(x), None, None, weight, y, rows, lora=lora)
    wanted = np.zeros((5, group.out_features))
    for row, entry in enumerate(slot):
        if entry:
            adapter = (SMALL, LARGE)[entry - 1]
            wanted[row] = multiplier[row] * correction(adapter, *key, x[row : row + 1])[0]
    np.testing.assert_allclose(backend.read(y), wanted, rtol=1e-4, atol=1e-4)


def test_a_pool_for_one_adapter_is_the_adapters_own_array() -> None:
    pool = AdapterPool.for_adapters(NumpyBackend(), [LARGE])
    np.testing.assert_array_equal(pool.read(), LARGE.parameters)
    assert pool.layout == LARGE.layout
    grad = pool.backend.upload(2 * LARGE.parameters)
    views = LARGE.grad_views(2 * LARGE.parameters)
    piece = pool.grad(grad, 1, "o")
    assert piece is not None
    np.testing.assert_array_equal(pool.backend.read(piece.a)[0], views.layers[1].projections["o_proj"].da)
    np.testing.assert_array_equal(pool.backend.read(piece.b)[0], views.layers[1].projections["o_proj"].db)


def test_groups_that_no_adapter_touches_cost_nothing() -> None:
    pool = AdapterPool.for_adapters(NumpyBackend(), [SMALL])
    down = pool.backend.empty((1, 2))
    assert pool.adapts(0, "qkv") and not pool.adapts(0, "o")
    assert pool.lora(0, "o", down) is None and pool.grad(pool.flat, 0, "o") is None


def test_loading_again_leaves_nothing_of_what_was_there() -> None:
    pool = AdapterPool.for_adapters(NumpyBackend(), [LARGE, LARGE])
    pool.load([SMALL])
    fresh = AdapterPool(pool.backend, BASE.config, LARGE.layout.a_offsets, 5, entries=2)
    fresh.load([SMALL])
    np.testing.assert_array_equal(pool.read(), fresh.read())
    lora, wanted = (p.lora(0, "qkv", pool.flat) for p in (pool, fresh))
    assert lora is not None and wanted is not None
    np.testing.assert_array_equal(pool.backend.read(lora.scale), [[3.5, 0, 3.5], [0, 0, 0]])
    np.testing.assert_array_equal(pool.backend.read(lora.scale), pool.backend.read(wanted.scale))


def test_an_adapter_that_does_not_fit_is_refused() -> None:
    pool = AdapterPool.for_adapters(NumpyBackend(), [SMALL])
    with pytest.raises(AdapterError, match="rank 5 in a pool of rank 2"):
        pool.load([LARGE])
    with pytest.raises(AdapterError, match="room for 1 adapters"):
        pool.load([SMALL, SMALL])
    other = random_adapter(BASE, LoRAConfig(rank=2, target_modules=["o_proj"]))
    with pytest.raises(AdapterError, match=r"\(0, 'o'\), which the pool was not made for"):
        pool.load([other])
    with pytest.raises(AdapterError, match="made for another model's sizes"):
        pool.load([random_adapter(tiny_base(hidden=48), LoRAConfig(rank=2, target_modules=["q_proj"]))])


def test_a_rounded_pool_is_f16_where_the_backend_gains_and_every_value_fits(cpu: Callable[..., Backend]) -> None:
    backend = cpu()
    pool = AdapterPool.for_adapters(backend, [SMALL, LARGE], rounded=True)
    exact = AdapterPool.for_adapters(backend, [SMALL, LARGE]).read()
    assert pool.flat.dtype == ("f16" if backend.f16_adapters else "f32")
    np.testing.assert_array_equal(pool.read(), exact.astype(np.float16))
    huge = random_adapter(BASE, LoRAConfig(rank=2))
    huge.parameters[7] = 65520.0  # rounds to infinity
    kept = AdapterPool.for_adapters(backend, [SMALL, huge], rounded=True)
    assert kept.flat.dtype == "f32" and 65520.0 in kept.read()
    with pytest.raises(AdapterError, match="values beyond f16"):
        AdapterPool.for_adapters(backend, [LARGE], rounded=True).load([huge])
    assert AdapterPool.for_adapters(NumpyBackend(), [SMALL], rounded=True).flat.dtype == "f32"
    assert not cpu(isa="portable").f16_adapters
