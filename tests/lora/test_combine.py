"""Several adapters made one: the corrections that the result stands for. What peft computes: tests/oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import harness
from tiny_adapters import random_adapter, same, tiny_base
from tiny_models import make_hf
from tritune.backends.base import Backend
from tritune.errors import AdapterError, ConfigError
from tritune.lora import Adapter, LoRAConfig, as_one, combine_adapters
from tritune.lora.config import resolve_targets
from tritune.lora.deltas import delta_norms, distances

BASE = tiny_base()
A = random_adapter(BASE, LoRAConfig(rank=4, alpha=8, target_modules=["q_proj", "v_proj", "up_proj"]), seed=1)
B = random_adapter(BASE, LoRAConfig(rank=2, alpha=3, rslora=True, layers=(1,)), seed=2)
C = random_adapter(BASE, LoRAConfig(rank=4, alpha=4, target_modules=["q_proj", "down_proj"]), seed=3)


def deltas(adapter: Adapter) -> dict[tuple[int, str], np.ndarray]:
    return {
        (layer, name): weight.scale * weight.b.astype(np.float64) @ weight.a.astype(np.float64)
        for layer, pieces in enumerate(adapter.layers)
        for name, weight in pieces.projections.items()
    }


def weighted_sum(*terms: tuple[Adapter, float]) -> dict[tuple[int, str], np.ndarray]:
    total: dict[tuple[int, str], Any] = {}
    for adapter, weight in terms:
        for module, delta in deltas(adapter).items():
            total[module] = total.get(module, 0) + weight * delta
    return total


def assert_close(found: dict[tuple[int, str], np.ndarray], expected: dict[tuple[int, str], np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for module, delta in expected.items():
        assert np.linalg.norm(found[module] - delta) <= 1e-6 * max(1e-3, np.linalg.norm(delta)), module


def test_cat_is_the_exact_sum_also_of_other_ranks_and_targets() -> None:
    combined = combine_adapters([(A, 0.7), (B, 0.3), (C, -1.5)])
    assert_close(deltas(combined), weighted_sum((A, 0.7), (B, 0.3), (C, -1.5)))
    ranks = {(t.layer, t.projection): t.rank for t in combined.targets}
    assert ranks[1, "q_proj"] == 4 + 2 + 4 and ranks[1, "k_proj"] == 2 and ranks[0, "down_proj"] == 4
    assert {t.scale for t in combined.targets} == {1.0}
    assert combined.base_model == "org/tiny"
    # What is combined can be trained further and saved.
    assert resolve_targets(combined.config, BASE.config) == combined.targets


def test_cat_is_saved_and_loaded(tmp_path: Any) -> None:
    combined = combine_adapters([(A, 0.7), (B, 0.3)])
    combined.save(tmp_path / "x")
    assert same(Adapter.load(tmp_path / "x", BASE), combined)


def test_svd_is_exact_where_the_rank_is_enough_and_the_nearest_where_it_is_not() -> None:
    terms = [(A, 0.7), (C, -0.4)]
    expected = weighted_sum(*terms)
    assert_close(deltas(combine_adapters(terms, "svd", svd_rank=9)), expected)
    low = combine_adapters(terms, "svd", svd_rank=3)
    assert {t.rank for t in low.targets} == {3}
    u, values, v = np.linalg.svd(expected[0, "q_proj"])
    nearest = (u[:, :3] * values[:3]) @ v[:3]
    np.testing.assert_allclose(deltas(low)[0, "q_proj"], nearest, rtol=1e-4, atol=1e-4)
    assert {t.rank for t in combine_adapters([(A, 1), (B, 1)], "svd").targets} == {4}


def test_svd_of_adapters_that_do_nothing_yet_is_nothing() -> None:
    fresh = Adapter.create(BASE, LoRAConfig(rank=4))
    combined = combine_adapters([(fresh, 1.0), (fresh, 1.0)], "svd")
    assert not any(delta.any() for delta in deltas(combined).values())
    twice = combine_adapters([(A, 0.5), (A, 0.5)], "svd")  # the ranks side by side are no more than one of them
    assert_close(deltas(twice), deltas(A))


@pytest.mark.parametrize("kind", ["cat", "linear", "svd", "ties"])
def test_one_adapter_is_only_weighted(kind: str) -> None:
    density = 0.5 if kind == "ties" else None
    assert_close(deltas(combine_adapters([(B, -0.5)], kind, density=density)), weighted_sum((B, -0.5)))


def test_wrong_settings_are_refused() -> None:
    two = [(A, 1.0), (C, 1.0)]
    wide = random_adapter(tiny_base(hidden=48))
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ([], {}, ConfigError, "no adapters"),
        (two, {"combination_type": "mean"}, ConfigError, "'mean': expected cat, linear, svd, ties"),
        ([(A, float("nan"))], {}, ConfigError, "weight of an adapter: expected a finite number, found nan"),
        ([(A, "1")], {}, ConfigError, "found '1'"),
        (two, {"combination_type": "svd", "svd_rank": 0}, ConfigError, "svd_rank: expected an integer >= 1, found 0"),
        (two, {"combination_type": "ties"}, ConfigError, "density: ties needs it"),
        (two, {"combination_type": "linear", "density": 0.5}, ConfigError, "only ties uses it"),
        (two, {"combination_type": "ties", "density": 0.0}, ConfigError, r"a number in \(0, 1\], found 0.0"),
        ([(A, 1.0), (B, 1.0)], {"combination_type": "linear"}, AdapterError, r"layers\.1\.self_attn\.q_proj: .* 2, 4"),
        ([(A, 1.0), (wide, 1.0)], {}, AdapterError, "made for hidden_size 36, this base has 48"),
    ]
    for adapters, options, kind, message in cases:
        with pytest.raises(kind, match=message):
            combine_adapters(adapters, **options)


def test_several_adapters_at_once_give_the_logits_of_their_sum(backend: Backend, tmp_path: Any) -> None:
    make_hf(tmp_path, hidden=32, vocab=64)
    ours = harness.Ours(backend, tmp_path, "float")
    first = harness.random_adapter(ours.config, LoRAConfig(rank=4, alpha=8), seed=1, b_std=0.2)
    second = harness.random_adapter(
        ours.config, LoRAConfig(rank=3, alpha=2, target_modules=["v_proj", "down_proj"]), seed=2, b_std=0.2
    )
    tokens = [3, 9, 60, 1, 30]
    # Through weights 1 and 0, and a sum of halves: each must be what the one adapter gives.
    alone = ours.logits(tokens, first)
    assert harness.error(ours.logits(tokens), alone) > 0.01
    assert harness.error(ours.logits(tokens, as_one([(first, 1.0), (second, 0.0)])), alone) <= harness.EXACT
    assert harness.error(ours.logits(tokens, as_one([(first, 0.5), (first, 0.5)])), alone) <= harness.EXACT
    assert harness.error(ours.logits(tokens, as_one([(first, 0.7), (second, 0.3)])), alone) > 0.01
    # A weight is the multiplier that a row of a batch can have.
    half = ours.logits(tokens, first, multiplier=0.5)
    assert harness.error(ours.logits(tokens, as_one([(first, 0.5)])), half) <= harness.EXACT


def test_norms_and_distances_are_those_of_the_whole_matrices() -> None:
    for module, norm in delta_norms(A).items():
        assert norm == pytest.approx(np.linalg.norm(deltas(A)[module]), rel=1e-6)
    found = distances(A, C)
    assert found.keys() == deltas(A).keys() | deltas(C).keys()
    q = found[0, "q_proj"]
    assert q.difference == pytest.approx(np.linalg.norm(deltas(A)[0, "q_proj"] - deltas(C)[0, "q_proj"]), rel=1e-6)
    assert q.relative == pytest.approx(q.difference / max(q.norm, q.other_norm))
    assert (found[0, "up_proj"].relative, found[0, "down_proj"].relative) == (pytest.approx(1), pytest.approx(1))
    assert max(d.relative for d in distances(A, A).values()) < 1e-6
    # The same correction in other factors is no distance.
    other = A.copy()
    for pieces in other.layers:
        for weight in pieces.projections.values():
            weight.a[...], weight.b[...] = 2 * weight.a[::-1], weight.b[:, ::-1] / 2
    assert max(d.relative for d in distances(A, other).values()) < 1e-6
    nothing = Adapter.create(BASE, LoRAConfig(rank=4))
    assert max(d.relative for d in distances(nothing, nothing).values()) == 0
    with pytest.raises(
        AdapterError,
        match=r"adapters of different models: model\.layers\.\d\..* is \[.*36\] in one, \[.*48\] in the other",
    ):
        distances(A, random_adapter(tiny_base(hidden=48)))
