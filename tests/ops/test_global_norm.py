"""global_norm against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.base import LOSS_TOTALS, OPTIMIZER_STATE

SETTINGS = np.array([1e-3, 0.9, 0.999, 1e-8, 0.01, 1.0, 0.1, 0.001])
TOTALS = np.array([12.5, 5, 100, 40])
STATE = np.array([0, 0, 1, 0.1, 0.001, 2, 2, 1])


def norm(grads, totals=TOTALS, clip=1.0, state=STATE):
    settings = SETTINGS.copy()
    settings[5] = clip

    def op(backend):
        buffers = {"totals": backend.upload(totals), "state": backend.upload(state)}
        backend.global_norm(backend.upload(grads), buffers["totals"], backend.upload(settings), buffers["state"])
        return buffers

    return op


def elementwise(both, op):
    """The numbers of state and totals are of different sizes: each is held to the tolerance by itself."""
    found, expected = both.run(op)
    for name in expected:
        for i, value in enumerate(expected[name]):
            both.close(found[name][i], value, "f32", f"{name}[{i}]")
    return dict(zip(OPTIMIZER_STATE, found["state"], strict=True)), dict(zip(LOSS_TOTALS, found["totals"], strict=True))


@pytest.mark.parametrize("size", [1, 3, 127, 129, 5003, 70001])
@pytest.mark.parametrize("clip", [0.0, 1.0, 1e6])
def test_equals_the_definition(both, rng, size, clip):
    state, totals = elementwise(both, norm(rng.normal(size=size) * 3, clip=clip))
    assert state["finite"] == 1 and state["steps"] == 2 and state["skipped"] == 2 and state["skipped_in_a_row"] == 0
    assert totals == {"step_loss": 0, "step_tokens": 0, "log_loss": 112.5, "log_tokens": 45}


def test_the_corrections_follow_the_steps(both):
    def op(backend):
        totals, state = backend.empty((4,)), backend.empty((8,))
        for _ in range(3):
            backend.write(totals, np.array([1.0, 1, 0, 0]))
            backend.global_norm(backend.upload(np.ones(4)), totals, backend.upload(SETTINGS), state)
        return {"state": state}

    found, _ = both.run(op)
    both.close(found["state"][3:5], np.array([1 - 0.9**3, 1 - 0.999**3]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_a_gradient_that_is_not_finite_skips_the_step(both, bad):
    if bad == 1e30:  # its square is beyond float32, but not beyond float64
        both.reference = both.backend
    grads = np.ones(300)
    grads[217] = bad
    found, _ = both.run(norm(grads))
    check_skipped(found)


@pytest.mark.parametrize(("loss", "tokens"), [(np.nan, 5), (np.inf, 5), (0, 0)])
def test_a_loss_that_is_not_finite_or_no_token_skips_the_step(both, loss, tokens):
    totals = TOTALS.copy()
    totals[:2] = loss, tokens
    found, _ = both.run(norm(np.ones(300), totals))
    check_skipped(found)


def check_skipped(found):
    state = dict(zip(OPTIMIZER_STATE, found["state"], strict=True))
    assert state["finite"] == 0 and state["factor"] == 0
    assert state["skipped"] == 3 and state["skipped_in_a_row"] == 3 and state["steps"] == 1
    np.testing.assert_array_equal(found["state"][3:5], STATE[3:5].astype(np.float32))
    np.testing.assert_array_equal(found["totals"], [0, 0, 100, 40])


def test_the_same_sum_every_time(both, rng):
    grads = rng.normal(size=40009)
    first, _ = both.run(norm(grads))
    second, _ = both.run(norm(grads))
    np.testing.assert_array_equal(first["state"], second["state"])
