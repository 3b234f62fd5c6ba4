"""linear against its definition: the ternary product, exact for integers, and LoRA for rows of different adapters."""

from __future__ import annotations

import numpy as np
import pytest

from linear_cases import SHAPES, Case, dropout, forward


@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize(("tokens", "in_features", "parts"), SHAPES)
def test_equals_the_definition(both, rng, tokens, in_features, parts, accumulate, codes):
    case = Case(rng, tokens, in_features, parts, rank=3, pool=1)
    both.compare(lambda b: forward(case, b, codes=codes, accumulate=accumulate, pool=False, rate=0))


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("pool", [1, 3])
@pytest.mark.parametrize(("tokens", "in_features", "parts"), SHAPES)
def test_with_adapters_equals_the_definition(both, rng, tokens, in_features, parts, pool, rate):
    case = Case(rng, tokens, in_features, parts, rank=5, pool=pool)
    both.compare(lambda b: forward(case, b, codes=True, accumulate=False, pool=True, rate=rate))


@pytest.mark.parametrize("rank", [1, 16, 70])
@pytest.mark.parametrize("tokens", [2, 66])
def test_any_rank(both, rng, tokens, rank):
    case = Case(rng, tokens, 20, (4, 72), rank=rank, pool=2)
    both.compare(lambda b: forward(case, b, codes=False, accumulate=True, pool=True, rate=0))


@pytest.mark.parametrize("rank", [1, 5, 16, 70])
@pytest.mark.parametrize("tokens", [1, 3, 66])
def test_adapters_in_f16(both, rng, tokens, rank):
    case = Case(rng, tokens, 20, (4, 72), rank=rank, pool=2)
    case.round_adapters()
    both.compare(lambda b: forward(case, b, codes=True, accumulate=True, pool=True, rate=0))


@pytest.mark.parametrize("tokens", [4, 70])
def test_four_parts(both, rng, tokens):
    case = Case(rng, tokens, 16, (4, 64, 8, 12), rank=2, pool=2)
    both.compare(lambda b: forward(case, b, codes=True, accumulate=False, pool=True, rate=0))


@pytest.mark.parametrize("tokens", [1, 8, 9, 70])
def test_integer_sums_are_exact(both, rng, tokens):
    # The largest sums that the format allows with K = 1036: all codes of one sign, all of the largest size.
    weight = rng.integers(-1, 2, (36, 1036)).astype(np.int8)
    weight[0], weight[1] = 1, -1
    codes = rng.integers(-128, 128, (tokens, 1036)).astype(np.int8)
    codes[0] = -128

    def op(backend):
        y = backend.empty((tokens, 36))
        case = Case(rng, tokens, 4, (4,), rank=1, pool=1)
        backend.linear(
            backend.empty((tokens, 1036)),
            backend.upload(codes, "i8"),
            backend.upload(np.ones(tokens)),
            backend.pack_ternary([(weight, 1.0)]),
            y,
            case.rows(backend),
        )
        return {"y": y}

    both.compare(op, "exact")


@pytest.mark.parametrize("tokens", [3, 40])
def test_rows_without_an_adapter_are_untouched_by_it(both, rng, tokens):
    case = Case(rng, tokens, 20, (12,), rank=4, pool=2)
    plain = np.asarray(
        both.backend.read(forward(case, both.backend, codes=True, accumulate=False, pool=False, rate=0)["y"])
    )
    mixed = forward(case, both.backend, codes=True, accumulate=False, pool=True, rate=0.1)
    without = case.slot == 0
    assert without.any()
    np.testing.assert_array_equal(np.asarray(both.backend.read(mixed["y"]))[without], plain[without])
    assert not np.asarray(both.backend.read(mixed["down"]))[without].any()


@pytest.mark.parametrize("tokens", [3, 40])
def test_a_mixed_batch_equals_each_adapter_alone(both, rng, tokens):
    case = Case(rng, tokens, 20, (12, 8), rank=4, pool=3)
    case.slot = np.arange(tokens) % 4
    mixed = np.asarray(
        both.backend.read(forward(case, both.backend, codes=True, accumulate=False, pool=True, rate=0)["y"])
    )
    for slot in range(4):
        alone = Case(np.random.default_rng(0), tokens, 20, (12, 8), rank=4, pool=3)
        alone.slot = np.full(tokens, slot)
        y = np.asarray(
            both.backend.read(forward(alone, both.backend, codes=True, accumulate=False, pool=True, rate=0)["y"])
        )
        both.close(mixed[case.slot == slot], y[case.slot == slot].astype(np.float64))


def test_dropout_mask_depends_on_module_and_step(both, rng):
    case = Case(rng, 3, 64, (4,), rank=1, pool=1)
    case.slot[:] = 1

    def down(module, step):
        backend = both.backend
        lora = case.lora(backend)
        settings = dropout(backend, 0.5, module)
        backend.write(settings.state, np.array([3, step], dtype=np.uint32))
        y = backend.empty((3, 4))
        backend.linear(
            backend.upload(case.x), None, None, case.weight(backend), y, case.rows(backend), lora=lora, dropout=settings
        )
        return np.asarray(backend.read(lora.down))

    first = down(1, 1)
    np.testing.assert_array_equal(first, down(1, 1))
    assert np.abs(first - down(2, 1)).max() > 1e-3
    assert np.abs(first - down(1, 2)).max() > 1e-3
