"""Packing: isolated sequences, every example once an epoch, an order that follows from the seed, going on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritune.data import Batch, BatchPosition, BatchStream, Example, pack
from tritune.data.batches import plan_epoch
from tritune.errors import ConfigError


def example(first: int, length: int, trained: list[bool] | None = None) -> Example:
    flags = np.array(trained if trained is not None else [i > 0 for i in range(length)])
    return Example(np.arange(first, first + length, dtype=np.int32), flags)


def examples(*lengths: int) -> list[Example]:
    return [example(100 * (i + 1), length) for i, length in enumerate(lengths)]


def test_a_packed_batch() -> None:
    batch = pack([example(10, 3, [True, False, True]), example(20, 1, [True]), example(30, 2, [False, True])])
    assert batch.tokens.tolist() == [10, 11, 12, 20, 30, 31]
    # 10 is first and no target; 20 is not the target of 12, nor 30 of 20.
    assert batch.targets.tolist() == [-1, 12, -1, -1, 31, -1]
    assert batch.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.sequence.tolist() == [0, 0, 0, 1, 2, 2]
    assert batch.q_start.tolist() == [0, 3, 4, 6]
    assert batch.num_targets == 2
    for name in ("tokens", "targets", "positions", "sequence", "q_start"):
        assert getattr(batch, name).dtype == np.int32


def test_packing_leaves_examples_alone() -> None:
    one = example(10, 3, [True, True, True])
    pack([one])
    assert one.trained.all()


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=80)


@settings(max_examples=80, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_every_example_once(lengths: list[int], seed: int, epoch: int) -> None:
    plan = plan_epoch(lengths, 20, seed, epoch)
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in batch) <= 20 for batch in plan)
    assert plan == plan_epoch(lengths, 20, seed, epoch)


def test_shuffled_by_seed_and_epoch() -> None:
    plans = [plan_epoch([5] * 40, 10, seed, epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]]
    assert all(a != b for i, a in enumerate(plans) for b in plans[:i])


@settings(max_examples=40, deadline=None)
@given(lengths=LENGTHS, taken=st.integers(0, 100))
def test_going_on_from_a_position(lengths: list[int], taken: int) -> None:
    made = examples(*lengths)
    straight = BatchStream(made, 20, seed=3)
    for _ in range(taken):
        next(straight)
    resumed = BatchStream(made, 20, seed=3, position=straight.position)
    for _ in range(10):
        one, two = next(straight), next(resumed)
        assert one.tokens.tolist() == two.tokens.tolist()
        assert one.q_start.tolist() == two.q_start.tolist()
        assert straight.position == resumed.position


def test_epochs() -> None:
    made = examples(*[7] * 10)
    stream = BatchStream(made, 20, seed=0)
    assert stream.num_batches(0) == 5
    first = list(stream.epoch())
    assert len(first) == 5
    assert stream.position == BatchPosition(epoch=1, batch=0)
    second = list(stream.epoch())

    def starts(batches: list[Batch]) -> list[int]:
        return [int(batch.tokens[start]) for batch in batches for start in batch.q_start[:-1]]

    assert sorted(starts(first)) == sorted(starts(second)) == [100 * (i + 1) for i in range(10)]
    assert starts(first) != starts(second)


def test_the_rest_of_an_epoch() -> None:
    stream = BatchStream(examples(*[7] * 10), 20, seed=0)
    next(stream)
    assert len(list(stream.epoch())) == 4


def test_batches_are_well_filled() -> None:
    lengths = np.random.default_rng(0).integers(20, 400, 400).tolist()
    plan = plan_epoch(lengths, 512, seed=0, epoch=0)
    assert sum(lengths) / (512 * len(plan)) > 0.9


def test_what_cannot_be_packed() -> None:
    with pytest.raises(ConfigError, match="no examples"):
        BatchStream([], 10, seed=0)
    with pytest.raises(ConfigError, match="a micro-batch of 10 tokens cannot hold an example of 11"):
        BatchStream(examples(3, 11), 10, seed=0)
    with pytest.raises(ConfigError, match="epoch 0 has 1 batches, not 5"):
        BatchStream(examples(3), 10, seed=0, position=BatchPosition(0, 5))
