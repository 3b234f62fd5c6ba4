"""The paged cache: blocks, sequences, and their holders."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_adapters import tiny_base
from tritune import ContextLengthError
from tritune.backends.numpy import NumpyBackend
from tritune.models.cache import BLOCK_SIZE, CachedSequence, KVCache


def make_cache(blocks: int = 4) -> KVCache:
    return KVCache(NumpyBackend(), tiny_base().config, blocks)


def test_keys_and_values_of_every_layer() -> None:
    backend = NumpyBackend()
    for dtype in ("f16", "f32"):
        cache = KVCache(backend, tiny_base(layers=3).config, 5, dtype)  # type: ignore[arg-type]
        assert len(cache.k) == len(cache.v) == 3
        assert {(buffer.shape, buffer.dtype) for buffer in (*cache.k, *cache.v)} == {((5, 1, BLOCK_SIZE, 8), dtype)}


def test_blocks_are_handed_out_once_and_come_back() -> None:
    cache = make_cache(3)
    blocks = [cache.allocate() for _ in range(3)]
    assert sorted(blocks) == [0, 1, 2]
    with pytest.raises(ContextLengthError, match="the KV cache is full: all 96 positions are in use"):
        cache.allocate()
    cache.retain(blocks[1])
    cache.release(blocks[1])
    assert cache.free_blocks == 0
    cache.release(blocks[1])
    assert cache.free_blocks == 1
    assert cache.allocate() == blocks[1]


def test_a_sequence_takes_blocks_as_it_grows() -> None:
    sequence = CachedSequence(make_cache())
    for length, blocks in ((1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3)):
        sequence.extend([7] * (length - len(sequence.tokens)))
        assert (len(sequence.tokens), len(sequence.blocks)) == (length, blocks)
    held = list(sequence.blocks)
    for length, blocks in ((64, 2), (33, 2), (32, 1), (1, 1), (0, 0)):
        sequence.truncate(length)
        assert (len(sequence.tokens), sequence.blocks) == (length, held[:blocks])
    assert sequence.cache.free_blocks == 4


def test_a_sequence_that_does_not_fit_changes_nothing() -> None:
    cache = make_cache(2)
    first, second = CachedSequence(cache), CachedSequence(cache)
    first.extend([1] * 33)
    version = second.version
    with pytest.raises(ContextLengthError, match="1 tokens do not fit the KV cache of 64 positions"):
        second.extend([1])
    with pytest.raises(ContextLengthError, match="65 tokens do not fit the KV cache of 64 positions"):
        first.extend([1] * 32)
    assert (len(first.tokens), len(first.blocks), second.blocks, second.version) == (33, 2, [], version)
    first.truncate(32)
    second.extend([1])
    assert first.blocks != second.blocks


def test_a_dropped_sequence_gives_its_blocks_back() -> None:
    cache = make_cache()
    sequence = CachedSequence(cache)
    sequence.extend([1] * 100)
    assert cache.free_blocks == 0
    del sequence
    assert cache.free_blocks == 4


def test_common_prefix() -> None:
    sequence = CachedSequence(make_cache())
    sequence.extend([1, 2, 3])
    for tokens, count in (([], 0), ([1], 1), ([1, 2, 3, 4], 3), ([1, 9, 3], 1), ([9], 0)):
        assert sequence.common_prefix(tokens) == count


def test_the_version_tells_every_change() -> None:
    sequence = CachedSequence(make_cache())
    seen = [sequence.version]
    for change in (
        lambda: sequence.extend([1, 2]),
        lambda: sequence.truncate(1),
        lambda: sequence.extend([2]),
        lambda: sequence.truncate(0),
    ):
        change()
        seen.append(sequence.version)
    assert len(set(seen)) == 5


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 130)), max_size=25))
def test_no_block_is_lost_or_shared(steps: list[tuple[int, int]]) -> None:
    cache = make_cache(6)
    sequences = [CachedSequence(cache) for _ in range(3)]
    for index, length in steps:
        sequence = sequences[index]
        if length <= len(sequence.tokens):
            sequence.truncate(length)
        else:
            try:
                sequence.extend([5] * (length - len(sequence.tokens)))
            except ContextLengthError:
                continue
        assert len(sequence.blocks) == -(-len(sequence.tokens) // BLOCK_SIZE)
        held = [block for one in sequences for block in one.blocks]
        assert len(set(held)) == len(held)
        assert cache.free_blocks == 6 - len(held)
