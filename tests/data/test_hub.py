"""Data sets of the Hub: what is taken for an id, the line without the extra, and rows of a real data set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tritune.data import ChatRow, CompletionRow, open_rows
from tritune.data.hub import HubValues, is_hub_id
from tritune.data.source import RowSource
from tritune.errors import DataError


@pytest.mark.parametrize("text", ["tatsu-lab/alpaca", "org/name:config", "org/name#train[:10%]", "o/n.x:c#test"])
def test_ids(text: str) -> None:
    assert is_hub_id(text)


@pytest.mark.parametrize(
    "text", ["rows.jsonl", "data/rows.jsonl", "./a/b", "../a/b", "/a/b", "a/b/c", "a b/c", "a/b.gz"]
)
def test_names_of_files(text: str) -> None:
    assert not is_hub_id(text)


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from tritune.data import open_rows\nfrom tritune.errors import ConfigError\n"
        "try: open_rows('some/thing')\nexcept ConfigError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == (
        "data some/thing: no such file, and data sets of the Hub need: pip install 'tritune[datasets]'\n"
    )


def test_rows_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    dataset = datasets.Dataset.from_list([{"messages": messages}] * 2 + [{"messages": messages[:1]}])
    rows = RowSource(HubValues(dataset, "org/name#train"))
    assert isinstance(rows.parse(1), ChatRow)
    assert rows.fingerprint
    with pytest.raises(DataError, match="org/name#train: row 3: no answer of the assistant to learn"):
        rows.read_all()


def test_a_data_set_is_loaded_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes a folder of that name for the data set: no network."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    for split, count in (("train", 3), ("validation", 2)):
        rows = [json.dumps({"prompt": "p", "completion": f"{split} {n}"}) for n in range(count)]
        (tmp_path / "org" / "name" / f"{split}.jsonl").write_text("\n".join(rows))
    for text, split, count in (("org/name", "train", 3), ("org/name", "valid", 2), ("org/name#validation", "train", 2)):
        values = HubValues.load(text, split)
        assert len(values) == count
    assert RowSource(values)[1] == CompletionRow("p", "validation 1", 2)
    with pytest.raises(DataError, match=r"data org/name#nothing: no such file, and not to be had from the Hub \("):
        HubValues.load("org/name#nothing", "train")


def test_a_name_that_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(No such file or directory\)"):
        open_rows(tmp_path / "some" / "thing")
