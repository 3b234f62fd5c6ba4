"""However sequences are batched, cut, or mixed, each one's numbers are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oracles.harness import Gradients, Ours, batch_of, close_gradients, error, example, random_adapter
from tiny_models import make_hf
from tritune.backends.base import Backend
from tritune.lora import Adapter, LoRAConfig
from tritune.models.batch import Piece
from tritune.models.training_state import MicroBatch

SAME = 1e-5
"""Sums of float32 in another order."""
LORA = LoRAConfig(rank=4, alpha=8, rank_pattern={"q_proj": 2})
LENGTHS = (9, 2, 14, 5)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf(tmp_path_factory.mktemp("model"), hidden=32, ffn=52, heads=4, kv_heads=2).path


@pytest.fixture
def ours(backend: Backend, directory: Path) -> Ours:
    # The rounding is off: a code that flips with the order of a sum is not what is looked for here.
    return Ours(backend, directory, "float")


@pytest.fixture
def adapter(ours: Ours) -> Adapter:
    return random_adapter(ours.config, LORA)


def added(ours: Ours, adapter: Adapter, batches: list[MicroBatch], rows: int, **options: object):
    """(summed loss, tokens, summed gradients) of micro-batches in one state."""
    state = ours.training(adapter, rows, **options)
    for batch in batches:
        state.forward_backward(batch)
    return ours.sums(state, adapter)


def same(found: tuple[float, int, Gradients], expected: tuple[float, int, Gradients]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=SAME)
    assert found[1] == expected[1]
    close_gradients(found[2], expected[2], SAME)


def test_packed_equals_separate_and_accumulated(ours: Ours, adapter: Adapter) -> None:
    items = [example(ours.config.vocab_size, length, seed) for seed, length in enumerate(LENGTHS)]
    packed = added(ours, adapter, [batch_of(items, 32)], 32)
    alone = [added(ours, adapter, [batch_of([item], len(item.ids))], len(item.ids)) for item in items]
    summed = {name: sum(grads[name] for _, _, grads in alone) for name in packed[2]}
    same(packed, (sum(a[0] for a in alone), sum(a[1] for a in alone), summed))
    same(added(ours, adapter, [batch_of([item], 32) for item in items], 32), packed)
    same(added(ours, adapter, [batch_of(items[:2], 32), batch_of(items[2:], 32)], 32), packed)


def test_separate_mean_losses_are_weighted_by_their_tokens(ours: Ours, adapter: Adapter) -> None:
    """One mean over all trained tokens, not a mean of means."""
    items = [example(ours.config.vocab_size, 12, 1, share=0.9), example(ours.config.vocab_size, 12, 2, share=0.2)]
    means = [ours.loss_and_gradients([item], adapter)[0] for item in items]
    counts = [int((item.targets >= 0).sum()) for item in items]
    packed, _ = ours.loss_and_gradients(items, adapter)
    assert counts[0] > 2 * counts[1]
    assert packed == pytest.approx(np.dot(means, counts) / sum(counts), rel=SAME)


def test_spare_rows_leave_no_trace(ours: Ours, adapter: Adapter) -> None:
    items = [example(ours.config.vocab_size, length, 3) for length in (9, 5)]
    tight = added(ours, adapter, [batch_of(items, 14)], 14)
    state = ours.training(adapter, 64)
    big = example(ours.config.vocab_size, 64, 4)
    state.forward_backward(batch_of([big], 64))  # fills every row with something
    ours.backend.write(state.grads, np.zeros(state.grads.shape, np.float32))
    ours.backend.write(state.totals, np.zeros(state.totals.shape, np.float32))
    state.forward_backward(batch_of(items, 64))
    same(ours.sums(state, adapter), tight)


def test_a_sequence_without_a_trained_token_leaves_no_trace(ours: Ours, adapter: Adapter) -> None:
    items = [example(ours.config.vocab_size, length, 5) for length in (7, 6)]
    ignored = example(ours.config.vocab_size, 8, 6)
    ignored.trained[:] = False
    expected = added(ours, adapter, [batch_of(items, 32)], 32)
    for place in range(3):
        batch = batch_of([*items[:place], ignored, *items[place:]], 32)
        same(added(ours, adapter, [batch], 32), expected)


def test_rows_without_adapter_train_nothing(ours: Ours, adapter: Adapter) -> None:
    items = [example(ours.config.vocab_size, length, 5) for length in (7, 6)]
    both = batch_of(items, 16)
    first = batch_of(items[:1], 16)
    bare = MicroBatch([both.pieces[0], Piece(items[1].ids, 0, slot=0)], both.targets)
    mixed, alone = (added(ours, adapter, [batch], 16) for batch in (bare, first))
    assert mixed[1] > alone[1]
    close_gradients(mixed[2], alone[2], SAME)


@pytest.mark.parametrize("start_layer", [0, 1])
def test_recomputing_changes_nothing(start_layer: int, backend: Backend, directory: Path) -> None:
    ours = Ours(backend, directory, "int8")
    adapter = random_adapter(ours.config, LORA)
    batch = batch_of([example(ours.config.vocab_size, n, 1) for n in (9, 12)], 24)
    found, expected = (
        added(ours, adapter, [batch], 24, recompute=recompute, start_layer=start_layer) for recompute in (True, False)
    )
    assert found[:2] == expected[:2]
    for name, value in expected[2].items():
        np.testing.assert_array_equal(found[2][name], value, err_msg=name)


def test_loss_without_gradient_is_the_same_loss(ours: Ours, adapter: Adapter) -> None:
    batch = batch_of([example(ours.config.vocab_size, n, 1) for n in (9, 12)], 24)
    state = ours.training(adapter, 24)
    state.forward_loss(batch)
    loss, tokens, gradients = ours.sums(state, adapter)
    expected = added(ours, adapter, [batch], 24)
    assert (loss, tokens) == (pytest.approx(expected[0], rel=1e-6), expected[1])
    assert not any(grad.any() for grad in gradients.values())


def test_mixed_adapters_equal_each_alone(ours: Ours) -> None:
    adapters = [
        random_adapter(ours.config, LORA, seed=1, b_std=0.2),
        random_adapter(ours.config, LoRAConfig(rank=2, alpha=8, target_modules=["v_proj"]), seed=2, b_std=0.2),
        random_adapter(ours.config, LoRAConfig(rank=5, alpha=3, rslora=True), seed=3, b_std=0.2),
    ]
    wanted = ((0, 1.0), (1, 1.0), (3, 0.5), (2, 1.0), (1, -1.0), (1, 0.0))
    ids = [example(ours.config.vocab_size, 4 + n, n).ids for n in range(len(wanted))]
    state = ours.inference(ours.pool(*adapters), rows=64, sequences=len(wanted), blocks=len(wanted))
    pieces = [Piece(t, 0, s, m, [state.cache.allocate()]) for t, (s, m) in zip(ids, wanted, strict=True)]
    together = np.split(state.logits(pieces), np.cumsum([len(t) for t in ids])[:-1])
    for tokens, found, (slot, multiplier) in zip(ids, together, wanted, strict=True):
        alone = ours.logits(tokens, adapters[slot - 1] if slot else None, multiplier)
        assert error(found, alone) <= SAME
        base = ours.logits(tokens)
        if slot and multiplier:
            assert error(found, base) > 1e-2
        else:
            assert error(found, base) <= SAME


def test_chunks_and_single_tokens_equal_one_prefill(ours: Ours, adapter: Adapter) -> None:
    """40 positions reach into a second block; chunks end inside of blocks, and take several buckets."""
    ids = example(ours.config.vocab_size, 40, 8).ids
    whole = ours.logits(ids, adapter)
    assert error(whole, pieced(ours, adapter, ids, "f32")) <= SAME
    assert SAME < error(whole, pieced(ours, adapter, ids, "f16")) <= 5e-3


def pieced(ours: Ours, adapter: Adapter, ids: list[int], cache: str):
    """Logits of all rows, run in chunks and then token by token, while another sequence is in the batch."""
    state = ours.inference(ours.pool(adapter), rows=16, sequences=2, blocks=5, cache=cache)
    own, others = ([state.cache.allocate() for _ in range(2)] for _ in range(2))
    rows = []
    start = 0
    for size in (7, 1, 12, 9, *[1] * 11):
        piece = Piece(ids[start : start + size], start, 1, 1.0, own)
        other = Piece(ids[start : start + 1], start, 0, 1.0, others)
        rows.append(state.logits([other, piece])[1:])
        start += size
    assert start == len(ids)
    return np.concatenate(rows)
