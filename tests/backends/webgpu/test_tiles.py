"""The tiles of a large GPU and split depths, on whatever device there is: how a product is cut does not change it."""

from __future__ import annotations

import numpy as np
import pytest

from linear_cases import Case, dropout
from tritune.backends.numpy import NumpyBackend
from tritune.backends.webgpu.tiles import PARTIAL_BYTES, Plan, Tile, plan_product


@pytest.fixture
def cut(webgpu):
    """Sets the plan of every product; the device's own comes back after the test."""

    def with_plan(plan):
        webgpu.plan_gemm = lambda *_: plan
        return webgpu

    yield with_plan
    del webgpu.plan_gemm


def close(backend, found, expected):
    for name, buffer in found.items():
        wanted = np.asarray(expected[name])
        scale = float(np.sqrt(np.mean(np.square(wanted))))
        np.testing.assert_allclose(np.asarray(backend.read(buffer)), wanted, rtol=2e-5, atol=4e-5 * scale, err_msg=name)


def products(case, backend):
    y, dx, lora, grad = backend.upload(case.y), backend.upload(case.x), case.lora(backend, case.down()), None
    grad = case.grad(backend)
    weight, rows, drop = case.weight(backend), case.rows(backend), dropout(backend, 0.3)
    x = backend.upload(case.x)
    codes, scales = backend.upload(case.codes, "i8"), backend.upload(case.scales)
    backend.linear(x, codes, scales, weight, y, rows, accumulate=True, lora=lora, dropout=drop)
    dy = backend.upload(case.dy)
    backend.linear_backward(dy, x, weight, rows, dx=dx, lora=lora, grad=grad, dropout=drop)
    return {"y": y, "down": lora.down, "dx": dx, "da": grad.a, "db": grad.b}


@pytest.mark.parametrize("rank", [4, 5])
def test_split_products_of_eight_by_eight_a_thread(cut, rng, rank):
    backend, reference = cut(Plan(Tile(32, 64, 8, 8, 8), 3)), NumpyBackend(np.float64)
    case = Case(rng, 83, 76, (68, 20, 4), rank=rank, pool=1)
    close(backend, products(case, backend), {n: reference.read(b) for n, b in products(case, reference).items()})


def test_a_product_longer_than_a_submit_may_be_is_several_dispatches(opened, rng):
    """Such as those of a large batch on a small GPU, whose driver resets it after two seconds."""
    case, reference = Case(rng, 83, 76, (68, 20, 4), rank=4, pool=1), NumpyBackend(np.float64)
    table = rng.integers(-3, 4, (300, 76)).astype(np.float32)
    counts = []
    for limit in (100.0, 1e-12):
        backend = opened(submit_seconds=limit)
        backend.plan_gemm = lambda *_: Plan(Tile(16, 32, 8, 4, 4), 1)
        logits, dx = backend.empty((83, 300)), backend.empty((83, 76))
        with backend.record() as program:
            found = products(case, backend)
            backend.logits(backend.upload(case.x), backend.table(table, "f32"), logits)
            backend.logits_backward(logits, backend.table(table, "f32"), dx)
        program.run()
        close(backend, found, {n: reference.read(b) for n, b in products(case, reference).items()})
        close(backend, {"logits": logits, "dx": dx}, {"logits": case.x @ table.T, "dx": case.x @ table.T @ table})
        counts.append(len(program.dispatches))
    assert counts[1] > 2 * counts[0]


@pytest.mark.parametrize("splits", [1, 5])
def test_integer_sums_are_exact_in_a_large_tile(cut, rng, splits):
    backend = cut(Plan(Tile(128, 128, 16, 8, 8), splits))
    weight = rng.integers(-1, 2, (132, 1036)).astype(np.int8)
    codes = rng.integers(-128, 128, (130, 1036)).astype(np.int8)
    weight[0], codes[0] = 1, -128
    y = backend.empty((130, 132))
    rows = Case(rng, 130, 4, (4,), rank=1, pool=1).rows(backend)
    buffers = (backend.upload(codes, "i8"), backend.upload(np.ones(130)), backend.pack_ternary([(weight, 1.0)]))
    backend.linear(backend.empty((130, 1036)), *buffers, y, rows)
    np.testing.assert_array_equal(backend.read(y), codes.astype(np.int64) @ weight.T.astype(np.int64))


def test_plans_of_a_large_gpu_fill_it_and_stay_within_memory():
    for m, n, k in [(512, 2560, 6912), (4096, 2560, 2560), (128, 2560, 128256), (512, 48, 2560), (17, 4, 16)]:
        plan = plan_product(False, 32 << 10, m, n, k, {})
        workgroups = -(-m // plan.tile.rows) * -(-n // plan.tile.columns) * plan.splits
        assert plan.splits == 1 or 4 * m * n * plan.splits <= PARTIAL_BYTES
        assert workgroups >= 80 or k < 1024
