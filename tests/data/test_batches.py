"""A packed batch: isolated sequences, no target across a boundary."""

from __future__ import annotations

import numpy as np

from tritune.data import Example, pack


def example(first: int, length: int, trained: list[bool] | None = None) -> Example:
    flags = np.array(trained if trained is not None else [i > 0 for i in range(length)])
    return Example(np.arange(first, first + length, dtype=np.int32), flags)


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
