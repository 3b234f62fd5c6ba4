"""Where the matrices lie in a flat array: aligned, apart, all A before all B."""

from __future__ import annotations

import numpy as np
import pytest

from tiny_adapters import tiny_base
from tritune.lora.layout import ALIGNMENT, make_layout
from tritune.models.linears import GROUP_OF, PROJECTIONS, linear_groups

CONFIG = tiny_base().config
KEYS = [(2, "down"), (0, "qkv"), (1, "gate_up"), (0, "o")]
SHAPES = {
    "q_proj": (24, 36),
    "k_proj": (8, 36),
    "v_proj": (8, 36),
    "o_proj": (36, 24),
    "gate_proj": (48, 36),
    "up_proj": (48, 36),
    "down_proj": (36, 48),
}


def test_groups_have_the_sizes_of_the_model() -> None:
    for group in linear_groups(CONFIG):
        for projection, rows in zip(group.projections, group.parts, strict=True):
            assert (rows, group.in_features) == SHAPES[projection]
            assert GROUP_OF[projection] == group.name


@pytest.mark.parametrize(("rank", "entries"), [(1, 1), (3, 1), (5, 4)])
def test_views_have_their_shapes_and_do_not_overlap(rank: int, entries: int) -> None:
    layout = make_layout(CONFIG, KEYS, rank, entries)
    flat = np.zeros(layout.size, np.float32)
    total = 0
    for layer, group in KEYS:
        for projection in layout.groups[group].projections:
            outputs, inputs = SHAPES[projection]
            for entry in range(entries):
                a = layout.a_view(flat, layer, projection, rank, entry)
                b = layout.b_view(flat, layer, projection, rank, entry)
                assert a.shape == (rank, inputs) and b.shape == (outputs, rank)
                assert np.shares_memory(a, flat) and np.shares_memory(b, flat)
                a += 1
                b += 1
                total += a.size + b.size
    assert flat.max() == 1 and flat.sum() == total


def test_every_a_lies_before_every_b_and_all_are_aligned() -> None:
    layout = make_layout(CONFIG, KEYS, 3, 2)
    offsets = [*layout.a_offsets.values(), *layout.b_offsets.values()]
    assert offsets == sorted(offsets) and all(offset % ALIGNMENT == 0 for offset in offsets)
    assert list(layout.a_offsets) == list(layout.b_offsets) == [(0, "qkv"), (0, "o"), (1, "gate_up"), (2, "down")]
    assert layout.size % ALIGNMENT == 0


def test_a_group_is_one_range_that_a_kernel_can_bind() -> None:
    layout = make_layout(CONFIG, [(0, "qkv")], 2, 3)
    assert layout.a_shape("qkv") == (3, 3 * 2, 36) and layout.b_shape("qkv") == (3, 24 + 8 + 8, 2)
    flat = np.arange(layout.size, dtype=np.float32)
    a = flat[layout.a_offsets[0, "qkv"] :][: 3 * 6 * 36].reshape(3, 6, 36)
    b = flat[layout.b_offsets[0, "qkv"] :][: 3 * 40 * 2].reshape(3, 40, 2)
    np.testing.assert_array_equal(layout.a_view(flat, 0, "k_proj", 2, entry=1), a[1, 2:4])
    np.testing.assert_array_equal(layout.b_view(flat, 0, "v_proj", 2, entry=2), b[2, 32:40])


def test_a_smaller_rank_takes_the_first_rows_and_columns() -> None:
    layout = make_layout(CONFIG, [(0, "qkv")], 4)
    flat = np.arange(layout.size, dtype=np.float32)
    np.testing.assert_array_equal(layout.a_view(flat, 0, "v_proj", 2), layout.a_view(flat, 0, "v_proj", 4)[:2])
    np.testing.assert_array_equal(layout.b_view(flat, 0, "v_proj", 2), layout.b_view(flat, 0, "v_proj", 4)[:, :2])


def test_duplicate_keys_take_no_room() -> None:
    assert make_layout(CONFIG, KEYS + KEYS, 3).size == make_layout(CONFIG, KEYS, 3).size
    assert set(GROUP_OF) == set(PROJECTIONS)
