"""Tokens kept on the disk: the same as those made anew, and never wrong ones after a crash or a change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tiny_tokenizer import write_directory
from tritune.cache_folder import cache_folder
from tritune.data import Dataset, Encoded, Example, RowEncoder, open_rows
from tritune.data.token_cache import TokenCache
from tritune.text import ChatTemplate, Tokenizer

ROWS = [
    {"prompt": "a b c", "completion": "d"},
    {"prompt": "a " * 90, "completion": "d"},  # cut
    {"prompt": "a", "completion": "d " * 90},  # left out
]


@pytest.fixture(scope="module")
def bitnet(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(write_directory(tmp_path_factory.mktemp("bitnet")))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def dataset_of(file: Path, tokenizer: Tokenizer, max_seq_len: int = 64, **options: bool) -> Dataset:
    encoder = RowEncoder(tokenizer, ChatTemplate.resolve(tokenizer, "bitnet"), max_seq_len)
    return Dataset(open_rows(file), encoder, **options)


def same(one: Encoded, two: Encoded) -> bool:
    a, b = ([sequence for item in made.items for sequence in item.sequences] for made in (one, two))
    return (one.shortened, len(one.items), len(a)) == (two.shortened, len(two.items), len(b)) and all(
        x.tokens.dtype == y.tokens.dtype
        and np.array_equal(x.tokens, y.tokens)
        and np.array_equal(x.trained, y.trained)
        and x.line == y.line
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize(
    "rows",
    [ROWS, [{"text": "a b " * 90}], [{"prompt": "p", "chosen": "a", "rejected": "b"}] * 2],
    ids=["completions", "windows", "pairs"],
)
def test_cached_examples_are_those_made_anew(
    rows: list[dict[str, str]], tmp_path: Path, cache: Path, bitnet: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    plain = [dataset_of(file, bitnet, cache=False).encoded(i) for i in range(len(rows))]
    first = dataset_of(file, bitnet)
    assert all(same(first.encoded(i), plain[i]) for i in range(len(rows)))
    del first  # gives the lock back
    again = dataset_of(file, bitnet)
    monkeypatch.setattr(RowEncoder, "encode", None)  # nothing is tokenised a second time
    assert all(same(again.encoded(i), plain[i]) for i in range(len(rows)))
    assert again.notes() == []
    _ = [again[i] for i in range(len(rows))]
    if rows is ROWS:
        assert again.notes() == [
            "1 rows were cut from the left of the prompt to fit 64 tokens",
            "1 rows were left out: their answer does not fit 64 tokens or teaches nothing (one is at line 3)",
        ]


def test_another_file_or_another_setting_is_tokenised_anew(tmp_path: Path, cache: Path, bitnet: Tokenizer) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROWS[1]))
    assert len(dataset_of(file, bitnet)[0][0]) == 64
    assert len(dataset_of(file, bitnet, max_seq_len=32)[0][0]) == 32
    file.write_text(json.dumps(ROWS[1] | {"completion": "e"}))
    os.utime(file, ns=(1, 1))
    changed = dataset_of(file, bitnet)[0][0].sequences[0]
    assert bitnet.decode(changed.tokens[changed.trained].tolist()) == "e"


def test_a_crash_leaves_nothing_wrong(tmp_path: Path, cache: Path, bitnet: Tokenizer) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS[:2])))
    plain = [dataset_of(file, bitnet, cache=False).encoded(i) for i in range(2)]
    _ = [dataset_of(file, bitnet).encoded(i) for i in range(2)]
    (tokens,) = cache.rglob("tokens/*/tokens")
    whole = tokens.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:-1], bytes(len(whole)), whole[::-1]):
        tokens.write_bytes(damaged)
        assert all(same(dataset_of(file, bitnet).encoded(i), plain[i]) for i in range(2))
        assert all(same(dataset_of(file, bitnet).encoded(i), plain[i]) for i in range(2))


def test_a_second_process_reads_and_does_not_write(tmp_path: Path, cache: Path) -> None:
    encoded = Encoded((Example(np.array([1, 2, 3], np.int32), np.array([False, True, True]), 1),))
    mine = TokenCache(tmp_path / "entry", 4)
    mine.put(0, encoded)
    code = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from tritune.data.token_cache import TokenCache; from tritune.data import Encoded, Example\n"
        "cache = TokenCache(Path(sys.argv[1]), 4); found = cache.get(0, 1)\n"
        "cache.put(1, found); print(found.items[0].tokens.tolist(), cache.get(1, 2))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "entry")], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "[1, 2, 3] None\n"
    mine.put(1, encoded)
    assert mine.get(1, 1) is not None


def test_where_nothing_can_be_written_rows_are_tokenised_each_time(
    tmp_path: Path, bitnet: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path / "file"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROWS[0]))
    assert len(dataset_of(rows, bitnet)[0]) == 1


def test_the_cache_does_not_grow_without_end(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in enumerate(["new", "old", "oldest"]):
        entry = cache_folder("tokens") / name
        entry.mkdir()
        (entry / "tokens").write_bytes(bytes(1000))
        os.utime(entry, (1000 - age, 1000 - age))
    monkeypatch.setattr("tritune.cache_folder.MAX_BYTES", 2000)
    assert sorted(path.name for path in cache_folder("tokens").iterdir()) == ["new", "old"]
