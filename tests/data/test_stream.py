"""The stream of micro-batches: every row once an epoch, the same order again, and going on in the middle."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_tokenizer import write_directory
from tritune.data import Batch, Dataset, DataStream, RowEncoder, StreamPosition, open_rows
from tritune.data.packing import by_length, fill
from tritune.errors import ConfigError, DataError
from tritune.text import ChatTemplate, Tokenizer


@pytest.fixture(scope="module")
def bitnet(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(write_directory(tmp_path_factory.mktemp("bitnet")))


def dataset_of(rows: list[dict[str, str]], tokenizer: Tokenizer, max_seq_len: int = 32) -> Dataset:
    return Dataset(open_rows(rows), RowEncoder(tokenizer, ChatTemplate.resolve(tokenizer, "bitnet"), max_seq_len))


def completions(lengths: list[int]) -> list[dict[str, str]]:
    return [{"prompt": f"{number:04}", "completion": "a" * length} for number, length in enumerate(lengths)]


def sequences(batches: list[Batch]) -> list[tuple[int, ...]]:
    return [
        tuple(batch.tokens[a:b].tolist())
        for batch in batches
        for a, b in zip(batch.q_start[:-1], batch.q_start[1:], strict=True)
    ]


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=300)


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, arrange=st.sampled_from([fill, by_length]))
def test_every_example_is_in_one_batch_that_holds_it(lengths: list[int], arrange: object) -> None:
    plan = arrange(lengths, 20)  # type: ignore[operator]
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    for batch in plan:
        sizes = [lengths[index] for index in batch]
        assert sum(sizes) <= 20
        assert arrange is fill or len(sizes) * max(sizes) <= 20


def test_batches_are_well_filled() -> None:
    lengths = np.random.default_rng(0).integers(20, 400, 400).tolist()
    assert sum(lengths) / (512 * len(fill(lengths, 512))) > 0.97


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=120),
    taken=st.integers(0, 200),
    window=st.integers(1, 4),
    packing=st.booleans(),
)
def test_going_on_from_a_position(
    bitnet: Tokenizer, lengths: list[int], taken: int, window: int, packing: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tritune.data.stream.WINDOW", window)
        data = dataset_of(completions(lengths), bitnet)
        straight = DataStream(data, 40, seed=3, packing=packing)
        done = [straight.epochs_done]
        for _ in range(taken):
            next(straight)
            done.append(straight.epochs_done)
        assert all(a < b for a, b in pairwise(done))
        saved = json.loads(json.dumps(vars(straight.position)))
        resumed = DataStream(data, 40, seed=3, position=StreamPosition(**saved), packing=packing)
        for _ in range(10):
            one, two = next(straight), next(resumed)
            assert one.tokens.tolist() == two.tokens.tolist()
            assert one.q_start.tolist() == two.q_start.tolist()
            assert straight.position == resumed.position


@pytest.mark.parametrize("packing", [True, False])
def test_every_row_once_an_epoch_in_another_order(
    bitnet: Tokenizer, packing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritune.data.stream.WINDOW", 2)
    stream = DataStream(dataset_of(completions([5] * 50), bitnet), 40, seed=0, packing=packing)
    first = sequences(list(stream.epoch()))
    assert (stream.position, stream.epochs_done) == (StreamPosition(epoch=1), 1.0)
    second = sequences(list(stream.epoch()))
    assert len(set(first)) == 50
    assert sorted(first) == sorted(second)
    assert first != second
    other = DataStream(dataset_of(completions([5] * 50), bitnet), 40, seed=1, packing=packing)
    assert sequences(list(other.epoch())) != first


def test_batches_are_counted_exactly_where_all_rows_fit_a_window(bitnet: Tokenizer) -> None:
    stream = DataStream(dataset_of(completions([5] * 50), bitnet), 40, seed=0)
    count = stream.estimate_batches()
    assert len(list(stream.epoch())) == count
    assert stream.estimate_batches(2.5) == math.ceil(2.5 * count)


def test_batches_of_a_long_file_are_estimated(bitnet: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritune.data.stream.WINDOW", 8)
    lengths = np.random.default_rng(0).integers(1, 20, 600).tolist()
    stream = DataStream(dataset_of(completions(lengths), bitnet), 60, seed=0)
    count = stream.estimate_batches()
    assert abs(len(list(stream.epoch())) / count - 1) < 0.15


def test_a_stream_reads_no_more_than_it_needs(bitnet: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritune.data.stream.WINDOW", 2)
    data = dataset_of(completions([5] * 500), bitnet)
    read: list[int] = []
    monkeypatch.setattr(Dataset, "__getitem__", lambda self, index: read.append(index) or (self.encoded(index).items))
    stream = DataStream(data, 40, seed=0)
    assert len(read) < 20
    for _ in range(3):
        next(stream)
        if stream.position.row:
            break
    assert len(read) < 20, "the next window is made when it is asked for"


def test_pairs_stay_together(bitnet: Tokenizer) -> None:
    rows = [{"prompt": f"{n:04}", "chosen": "a" * (n % 9 + 1), "rejected": "b"} for n in range(40)]
    for batch in DataStream(dataset_of(rows, bitnet), 64, seed=0).epoch():
        texts = [bitnet.decode(tokens) for tokens in sequences([batch])]
        assert len(texts) % 2 == 0
        for chosen, rejected in zip(texts[::2], texts[1::2], strict=True):
            assert chosen[:4] == rejected[:4]
            assert (chosen[4], rejected[4:]) == ("a", "b")


def test_rows_that_cannot_be_trained_are_passed_over(bitnet: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A too-long answer leaves no trained token: never NaN or a loss of 0, never an endless search."""
    monkeypatch.setattr("tritune.data.stream.WINDOW", 1)
    for bad in (range(0, 30, 2), range(1, 30), range(29)):
        lengths = [90 if number in bad else 5 for number in range(30)]
        data = dataset_of(completions(lengths), bitnet)
        stream = DataStream(data, 40, seed=0)
        for epoch in range(3):
            assert len(sequences(list(stream.epoch()))) == 30 - len(bad)
            assert stream.position.epoch == epoch + 1
        assert f"{len(bad)} rows were left out" in data.notes()[0]
    with pytest.raises(DataError, match="none of 3 rows can be trained: no answer fits max_seq_len 32"):
        DataStream(dataset_of(completions([90] * 3), bitnet), 40, seed=0)


def test_what_cannot_be_batched(bitnet: Tokenizer) -> None:
    data = dataset_of(completions([10, 20]), bitnet)
    with pytest.raises(ConfigError, match="a micro-batch of 10 tokens cannot hold an example of"):
        DataStream(data, 10, seed=0)
    with pytest.raises(ConfigError, match="epoch 0 has 2 rows, not 2"):
        DataStream(data, 40, seed=0, position=StreamPosition(0, 2))
    with pytest.raises(ConfigError, match="epoch 0 has 1 batches behind row 0, not 5"):
        DataStream(data, 64, seed=0, position=StreamPosition(0, 0, 5))


def test_the_order_of_a_file_does_not_depend_on_how_it_is_read(bitnet: Tokenizer, tmp_path: Path) -> None:
    rows = completions([5] * 30)
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    encoder = RowEncoder(bitnet, ChatTemplate.resolve(bitnet, "bitnet"), 32)
    first, again, listed = (
        sequences(list(DataStream(data, 40, seed=0).epoch()))
        for data in (Dataset(open_rows(file), encoder), Dataset(open_rows(file), encoder), dataset_of(rows, bitnet))
    )
    assert first == again == listed
