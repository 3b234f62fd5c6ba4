"""sample against its definition, and against the distribution that it stands for."""

from __future__ import annotations

import numpy as np
import pytest

GREEDY = (0.0, 1.0, 0.0, 1.0)  # temperature, top_p, min_p, repetition_penalty
PLAIN = (1.0, 1.0, 0.0, 1.0)
WARPERS = {
    "greedy": (GREEDY, 0),
    "greedy with penalty": ((0.0, 1.0, 0.0, 1.7), 0),
    "temperature": ((0.7, 1.0, 0.0, 1.0), 0),
    "top-k": ((1.3, 1.0, 0.0, 1.0), 5),
    "top-k of one": (PLAIN, 1),
    "top-k beyond V": (PLAIN, 1 << 20),
    "top-p": ((1.3, 0.8, 0.0, 1.0), 0),
    "tiny top-p": ((1.3, 1e-6, 0.0, 1.0), 0),
    "min-p": ((1.3, 1.0, 0.2, 1.0), 0),
    "all": ((0.9, 0.9, 0.05, 1.3), 20),
}


def pack_bits(bits):
    """Words u32 [S, ceil(V / 32)] of bool [S, V]."""
    padded = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 32)))
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint32)


def draw(logits, settings, top_k, seeds, draws=0, seen=None, allowed=None, times=1):
    """Draw ``times`` tokens from each row of logits; returns the buffers, and the tokens of every time in `tokens`."""
    count = len(logits)
    seen = np.zeros(logits.shape, bool) if seen is None else seen
    state = np.stack([np.full(count, top_k), seeds, np.full(count, draws), np.zeros(count, int)], axis=1)

    def op(backend):
        buffers = {
            "state": backend.upload(state, "u32"),
            "seen": backend.upload(pack_bits(seen), "u32"),
            "token": backend.empty((count,), "i32"),
            "logprob": backend.empty((count,)),
        }
        limits = None if allowed is None else backend.upload(pack_bits(allowed), "u32")
        values, how = backend.upload(logits), backend.upload(np.tile(settings, (count, 1)))
        for _ in range(times):
            backend.sample(values, how, buffers["state"], buffers["seen"], limits, buffers["token"], buffers["logprob"])
        return buffers

    return op


def compare(both, op):
    found, expected = both.run(op)
    for name in ("token", "state", "seen"):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    both.close(found["logprob"], expected["logprob"])
    return found


@pytest.mark.parametrize("name", WARPERS)
@pytest.mark.parametrize("vocabulary", [1, 3, 127, 129, 4099, 20011])
def test_equals_the_definition(both, rng, name, vocabulary):
    settings, top_k = WARPERS[name]
    logits = rng.normal(size=(7, vocabulary)) * 3
    seen = rng.random(logits.shape) < 0.3
    found = compare(both, draw(logits, settings, top_k, rng.integers(0, 2**32, 7), 3, seen))
    assert (found["state"][:, 2] == 4).all()
    row, token = 6, found["token"][6]
    assert found["seen"][row, token // 32] >> (token % 32) & 1


@pytest.mark.parametrize("name", WARPERS)
def test_only_allowed_tokens_are_drawn(both, rng, name):
    settings, top_k = WARPERS[name]
    logits = rng.normal(size=(5, 77)) * 3
    allowed = rng.random(logits.shape) < 0.1
    allowed[:, 76] = True
    found = compare(both, draw(logits, settings, top_k, np.arange(5), allowed=allowed))
    assert allowed[np.arange(5), found["token"]].all()


def test_draws_follow_one_another(both, rng):
    logits = np.tile(rng.normal(size=67), (2, 1))
    compare(both, draw(logits, WARPERS["all"][0], 20, np.array([5, 6]), times=9))


def test_greedy_takes_the_lowest_of_equal_tokens(both):
    logits = np.zeros((2, 300))
    logits[0, [133, 270]] = 2
    found = compare(both, draw(logits, GREEDY, 0, np.arange(2)))
    assert found["token"].tolist() == [133, 0]


@pytest.mark.parametrize("sign", [1, -1])
def test_ties_at_a_threshold_are_all_kept(both, sign):
    logits = np.tile(np.repeat([3.0, 1.0, -8.0], [1, 4, 5]) * np.array(sign), (200, 1))
    logits = logits if sign > 0 else logits[:, ::-1] - 1
    found = compare(both, draw(logits, (2.0, 1.0, 0.0, 1.0), 3, np.arange(200)))
    order = np.sort(logits[0])[::-1]
    assert set(logits[0, found["token"]]) == set(order[:3])
    assert len(set(found["token"].tolist())) > 3


def test_the_same_seed_draws_the_same_whatever_else_is_in_the_batch(both, rng):
    logits = rng.normal(size=(3, 129))
    whole, _ = both.run(draw(logits, PLAIN, 0, np.array([1, 2, 3])))
    alone, _ = both.run(draw(logits[1:2], PLAIN, 0, np.array([2])))
    assert whole["token"][1] == alone["token"][0]


def test_frequencies_follow_the_softmax(both):
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5])
    temperature, count = 0.8, 5000
    found, _ = both.run(draw(np.tile(logits, (count, 1)), (temperature, 1.0, 0.0, 1.0), 0, np.arange(count)))
    p = np.exp(logits / temperature)
    p /= p.sum()
    chi_square = np.sum((np.bincount(found["token"], minlength=5) - count * p) ** 2 / (count * p))
    assert chi_square < 18.5  # beyond it: one in a thousand, with 4 degrees of freedom


def test_top_p_keeps_the_smallest_set_that_reaches_it(both):
    logits = np.log(np.array([0.05, 0.4, 0.25, 0.2, 0.1]))
    for top_p, kept in ((0.39, {1}), (0.41, {1, 2}), (0.64, {1, 2}), (0.66, {1, 2, 3}), (0.96, {0, 1, 2, 3, 4})):
        found = compare(both, draw(np.tile(logits, (300, 1)), (1.0, top_p, 0.0, 1.0), 0, np.arange(300)))
        assert set(found["token"].tolist()) == kept


def test_large_vocabulary_and_cold_temperature(both, rng):
    logits = rng.normal(size=(2, 128256)) * 4
    compare(both, draw(logits, (1e-3, 0.95, 0.0, 1.1), 50, np.array([7, 8])))
    compare(both, draw(logits, (1.0, 0.95, 0.0, 1.1), 0, np.array([7, 8])))
