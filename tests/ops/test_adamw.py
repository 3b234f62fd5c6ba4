"""adamw against its definition, and against the formula of torch."""

from __future__ import annotations

import numpy as np
import pytest

SETTINGS = np.array([1e-2, 0.9, 0.999, 1e-8, 0.1, 1.0, 0.1, 0.001])
APPLIED = np.array([3, 0.25, 1, 0.271, 0.002997, 0, 0, 3])
SKIPPED = np.array([np.nan, 0, 0, 0.271, 0.002997, 1, 1, 3])


def step(values, state):
    def op(backend):
        buffers = {name: backend.upload(value) for name, value in values.items()}
        backend.adamw(*buffers.values(), backend.upload(SETTINGS), backend.upload(state))
        return buffers

    return op


def make_values(rng, size):
    parameters, grads, m = rng.normal(size=(3, size))
    return {"parameters": parameters, "grads": grads, "m": m, "v": rng.uniform(0, 1, size)}


@pytest.mark.parametrize("size", [1, 3, 127, 129, 1_100_003])
def test_equals_the_definition(both, rng, size):
    both.compare(step(make_values(rng, size), APPLIED))


@pytest.mark.parametrize("bad", [1.0, np.nan, np.inf])
def test_a_skipped_step_only_clears_the_gradient(both, rng, bad):
    values = make_values(rng, 129)
    values["grads"][5] = bad
    found, _ = both.run(step(values, SKIPPED))
    assert not found["grads"].any()
    for name in ("parameters", "m", "v"):
        np.testing.assert_array_equal(found[name], values[name].astype(np.float32))


def test_two_steps_through_global_norm_equal_the_formula(both, rng):
    values = make_values(rng, 129)
    values["m"][:] = values["v"][:] = 0
    grads = rng.normal(size=(2, 129))

    def op(backend):
        buffers = {name: backend.upload(value) for name, value in values.items()}
        state, settings, totals = backend.empty((8,)), backend.upload(SETTINGS), backend.empty((4,))
        for sums in grads:
            backend.write(buffers["grads"], sums)
            backend.write(totals, np.array([1.0, 4, 0, 0]))
            backend.global_norm(buffers["grads"], totals, settings, state)
            backend.adamw(*buffers.values(), settings, state)
        return buffers

    p, m, v = values["parameters"].copy(), np.zeros(129), np.zeros(129)
    for t, sums in enumerate(grads, start=1):
        g = sums / 4
        g *= min(1, 1 / (np.sqrt(np.sum(g**2)) + 1e-6))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        p -= 1e-2 * 0.1 * p
        p -= 1e-2 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    found, _ = both.run(op)
    both.close(found["parameters"], p)
