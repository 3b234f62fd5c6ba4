"""sampling_logits: what it leaves rough is never drawn, on random rows and on rows made to mislead it."""

from __future__ import annotations

import numpy as np
import pytest

GREEDY = (0.0, 1.0, 0.0, 1.0)  # temperature, top_p, min_p, repetition_penalty
SETTINGS = {
    "greedy": (GREEDY, 0),
    "greedy with penalty": ((0.0, 1.0, 0.0, 1.4), 0),
    "greedy with reward": ((0.0, 1.0, 0.0, 0.7), 0),
    "top-k": ((0.9, 1.0, 0.0, 1.0), 7),
    "top-k 1": ((2.0, 1.0, 0.0, 1.0), 1),
    "top-k, top-p, min-p, penalty": ((0.7, 0.9, 0.02, 1.3), 20),
    "top-k of all": ((0.7, 1.0, 0.0, 1.0), 10**6),
    "top-p alone": ((0.8, 0.7, 0.0, 1.0), 0),
}
VOCABULARY, WIDTH = 1043, 268


def bf16(table):
    """The nearest bfloat16 below, as raw bits."""
    return (table.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def normal(rng):
    return rng.normal(size=(VOCABULARY, WIDTH)), rng.normal(size=WIDTH)


def near_twins(rng):
    """Rows that differ from one another in the last bit of a few weights only."""
    table = np.tile(bf16(rng.normal(size=WIDTH)), (VOCABULARY, 1))
    for row in table:
        row[rng.integers(0, WIDTH, 3)] ^= 1
    return (table.astype(np.uint32) << 16).view(np.float32), rng.normal(size=WIDTH)


def outliers(rng):
    """One weight of each row is so large that the others vanish beside it; x does not look at that one."""
    table, x = rng.normal(size=(VOCABULARY, WIDTH)) * 1e-3, rng.normal(size=WIDTH)
    at = rng.integers(0, 5, VOCABULARY)
    table[np.arange(VOCABULARY), at] = 50
    x[:5] = 0
    return table, x


def between_steps(rng):
    """x points along what rounding leaves out of the first row, at the scale that its largest weight asks for."""
    table, x = normal(rng)
    table[0] = (bf16(rng.normal(size=WIDTH)).astype(np.uint32) << 16).view(np.float32)
    step = np.abs(table[0]).max() / 31
    x = table[0] - np.rint(table[0] / step) * step
    return table, x * 40


def mixed_norms(rng):
    table, x = normal(rng)
    return table * 10.0 ** rng.integers(-12, 3, (VOCABULARY, 1)), x * 1e3


def all_equal(rng):
    return np.tile(rng.normal(size=WIDTH), (VOCABULARY, 1)), rng.normal(size=WIDTH)


def vanishing(rng):
    table, x = normal(rng)
    return table * 1e-22, x * 1e-20


def zero(rng):
    return rng.normal(size=(VOCABULARY, WIDTH)), np.zeros(WIDTH)


FLAT = (near_twins, all_equal)  # nothing is likely, and all rows are rough in the same way: the worst for logprob
CASES = [normal, near_twins, outliers, between_steps, mixed_norms, all_equal, vanishing, zero]


def token_sets(rng, rows, share):
    bits = rng.random((rows, -(-VOCABULARY // 32) * 32)) < share
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)


def run(backend, head, stored, x, how, seen, allowed, draw):
    """(token, logprob, logits) as sampling_logits or logits give them; stored is a table of the backend's."""
    numbers, top_k = how
    rows = len(x)
    hidden = backend.upload(x)
    out = backend.upload(np.full((rows, VOCABULARY), 7.0))
    settings = backend.upload(np.tile(np.array(numbers), (rows, 1)))
    state = backend.upload(np.tile(np.array([top_k, 3, draw, 0]), (rows, 1)), "u32")
    sets = backend.upload(seen, "u32"), None if allowed is None else backend.upload(allowed, "u32")
    if head == "sampling_logits":
        backend.sampling_logits(hidden, stored, out, settings, state, *sets)
    else:
        backend.logits(hidden, stored, out)
    token, logprob = backend.empty((rows,), "i32"), backend.empty((rows,))
    backend.sample(out, settings, state, *sets, token, logprob)
    return tuple(np.asarray(backend.read(b)) for b in (token, logprob, out))


@pytest.mark.parametrize("limited", [False, True], ids=["all", "limited"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_draws_what_the_full_head_draws(both, rng, case, settings, limited):
    table, x = case(rng)
    stored, x = both.backend.table(bf16(table), "bf16"), np.stack([x, x[::-1] * 0.5, -x])[: 1 + 2 * limited]
    seen = token_sets(rng, len(x), 0.05)
    allowed = token_sets(rng, len(x), 0.2) if limited else None
    for draw in range(3 if SETTINGS[settings][0][0] > 0 else 1):
        arguments = stored, x, SETTINGS[settings], seen, allowed, draw
        token, logprob, out = run(both.backend, "sampling_logits", *arguments)
        wanted, wanted_logprob, logits = run(both.backend, "logits", *arguments)
        np.testing.assert_array_equal(token, wanted)
        np.testing.assert_array_equal(out[np.arange(len(x)), token], logits[np.arange(len(x)), token])
        np.testing.assert_allclose(logprob, wanted_logprob, atol=0.5 if case in FLAT else 0.02)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_reads_few_rows_as_stored(cpu, rng, dtype):
    backend = cpu(2)
    table, x = normal(rng)
    stored = bf16(table) if dtype == "bf16" else table.astype(np.float16 if dtype == "f16" else np.float32)
    seen = token_sets(rng, 1, 0)
    before = backend.rough_counts()
    token, _, _ = run(backend, "sampling_logits", backend.table(stored, dtype), x[None], (GREEDY, 0), seen, None, 0)
    heads, read = np.subtract(backend.rough_counts(), before)
    wide = (stored.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else stored.astype(np.float64)
    assert token[0] == np.argmax(wide @ x)
    assert heads == 1
    assert 0 < read < VOCABULARY // 20


def test_errors_and_norms_are_never_too_small(cpu, rng):
    """What the bound is made of, against float64."""
    backend = cpu(2)
    for case in CASES:
        stored = bf16(case(rng)[0])
        wide = (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        held = backend.table(stored, "bf16")
        rough = backend._rough_rows(held)
        scales, errors, norms = (np.asarray(b.array, np.float64) for b in (rough.scales, rough.errors, rough.norms))
        codes = unpacked(rough.codes.array)[:, :WIDTH]
        left = wide - codes * scales[:, None]
        assert np.all(errors >= np.sqrt(np.square(left).sum(1)))
        assert np.all(norms >= np.sqrt(np.square(wide).sum(1)))


@pytest.mark.parametrize("slack", [0.02, 0.5])
def test_the_winner_that_looks_as_bad_as_it_can(cpu, rng, slack):
    """x points along what rounding left out of the best row, where the bound holds with equality; all other rows are
    rounded exactly and look better, by almost the whole of that row's bound."""
    backend = cpu(2)
    best = rng.normal(size=WIDTH).astype(np.float32)
    rough = backend._rough_rows(backend.table(best[None], "f32"))
    x = best - unpacked(rough.codes.array)[0, :WIDTH] * np.float64(rough.scales.array[0])
    others = rng.integers(-31, 32, (VOCABULARY, WIDTH))
    others[:, 0] = 31
    wanted = best @ x - slack * (x @ x)  # of the others' logits; the best row's rough one is best @ x - x @ x
    table = (others * (wanted / (others @ x))[:, None]).astype(np.float32)
    table[777] = best
    seen = token_sets(rng, 1, 0)
    how = backend.table(table, "f32"), x[None] * 1e3, (GREEDY, 0), seen, None, 0
    assert run(backend, "sampling_logits", *how)[0][0] == 777 == run(backend, "logits", *how)[0][0]


def unpacked(codes):
    """Codes -31 … 31 of rough rows [V, bytes]."""
    chunks = codes.view(np.uint8).reshape(len(codes), -1, 192).astype(np.int32)
    low, high = chunks[..., :128], chunks[..., 128:]
    fours = np.concatenate([low & 15, low >> 4], axis=-1)
    twos = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    return (fours | twos << 4).reshape(len(codes), -1) - 32
