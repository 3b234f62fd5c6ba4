"""Several sources: joined, or each with its share of an epoch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tritune.data import open_rows
from tritune.data.files import split_weight
from tritune.errors import ConfigError, DataError


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for name, count in (("a", 60), ("b", 20)):
        rows = "".join(json.dumps({"text": f"{name}{n}"}) + "\n" for n in range(count))
        (tmp_path / f"{name}.jsonl").write_text(rows)
    return [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]


def test_sources_are_joined(files: list[Path]) -> None:
    rows = open_rows(files)
    assert len(rows) == rows.rows_per_epoch == 80
    assert [rows[i].text for i in (0, 59, 60, 79)] == ["a0", "a59", "b0", "b19"]  # type: ignore[union-attr]
    assert sorted(rows.order(1, 0).tolist()) == list(range(80))
    assert rows.order(1, 0).tolist() == rows.order(1, 0).tolist()
    assert len({tuple(rows.order(seed, epoch).tolist()) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_shares_hold_in_every_epoch(files: list[Path]) -> None:
    rows = open_rows([f"{files[0]}=0.25", f"{files[1]}=0.75"])
    assert rows.rows_per_epoch == 80
    drawn = Counter[int]()
    for epoch in range(3):
        order = rows.order(5, epoch)
        assert sum(order < 60) == 20
        times = Counter(order[order >= 60].tolist())
        assert set(times.values()) == {3}
        drawn.update(order[order < 60].tolist())
    assert set(drawn.values()) == {1}, "three epochs of a third each take every row once"
    assert open_rows({str(files[0]): 1, str(files[1]): 3}).order(5, 1).tolist() == rows.order(5, 1).tolist()


def test_a_row_of_a_source_names_its_file(files: list[Path]) -> None:
    files[1].write_text('{"text": "b"}\n{"txt": 1}\n')
    rows = open_rows(files)
    with pytest.raises(DataError, match=r"b\.jsonl: line 2: no 'text'"):
        rows[61]


def test_a_name_with_an_equals_sign_is_a_name(tmp_path: Path) -> None:
    file = tmp_path / "lr=0.1"
    file.write_text('{"text": "a"}')
    assert split_weight(str(file)) == (str(file), None)
    assert split_weight("a=b=0.5") == ("a=b", 0.5)
    assert split_weight("a=b") == ("a=b", None)
    assert len(open_rows(file)) == 1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (["=0.5", ""], r"b\.jsonl: no weight; expected one for each source or for none"),
        (["=0.5", "=0"], r"b\.jsonl: expected a weight > 0, found 0\.0"),
        (["=nan", "=1"], r"a\.jsonl: expected a weight > 0, found nan"),
        (["=1"], r"a\.jsonl: a weight says a share beside other sources, and there is only this one"),
    ],
)
def test_weights_that_make_no_sense(files: list[Path], weights: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_rows([f"{file}{weight}" for file, weight in zip(files, weights, strict=False)])


def test_pairs_are_not_mixed_with_other_rows(files: list[Path]) -> None:
    files[1].write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}')
    with pytest.raises(DataError, match="pairs of answers cannot be mixed with rows of other kinds"):
        open_rows(files)
