"""Hesper's binary: bytes written here by hand, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tiny_adapters import random_adapter, same, tiny_base
from tritune.errors import AdapterError
from tritune.lora import Adapter, LoRAConfig

BASE = tiny_base(layers=2, hidden=24)  # queries 24 = hidden, keys and values 8
QV = LoRAConfig(rank=3, alpha=6, target_modules=["q_proj", "v_proj"])


def by_hand(adapter: Adapter, rank: int, alpha: float, *, version: int = 1, layers: int = 2) -> bytes:
    data = struct.pack("<IIIfII", 0x4C4F5241, version, rank, alpha, layers, 0)
    for layer in adapter.layers:
        for name in ("q_proj", "v_proj"):
            weight = layer.projections[name]
            data += weight.a.astype("<f4").tobytes() + weight.b.astype("<f4").tobytes()
    return data


def test_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    adapter = random_adapter(BASE, QV)
    expected = by_hand(adapter, 3, 6)
    adapter.save(tmp_path / "out", "hesper")
    assert (tmp_path / "out").read_bytes() == expected
    (tmp_path / "in").write_bytes(expected)
    assert same(Adapter.load(tmp_path / "in", BASE), adapter)


def test_rslora_becomes_its_alpha(tmp_path: Path) -> None:
    adapter = random_adapter(BASE, LoRAConfig(rank=4, alpha=8, rslora=True, target_modules=["q_proj", "v_proj"]))
    adapter.save(tmp_path / "out", "hesper")
    loaded = Adapter.load(tmp_path / "out", BASE)
    assert loaded.targets[0].scale == pytest.approx(adapter.targets[0].scale)
    np.testing.assert_array_equal(loaded.parameters, adapter.parameters)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LoRAConfig(rank=4), "holds q_proj and v_proj of every layer; this adapter has down_proj"),
        (LoRAConfig(rank=4, target_modules=["q_proj", "v_proj"], layers=(1,)), "has q_proj, v_proj of 1 layers"),
        (LoRAConfig(rank=4, target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 2}), "one rank and one alpha"),
        (
            LoRAConfig(rank=4, target_modules=["q_proj", "v_proj"], alpha_pattern={"v_proj": 2}),
            "one rank and one alpha",
        ),
    ],
)
def test_what_the_format_cannot_hold_is_refused(config: LoRAConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="not saved: Hesper's format") as caught:
        random_adapter(BASE, config).save(tmp_path / "out", "hesper")
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_q_that_is_not_square_is_refused(tmp_path: Path) -> None:
    other = tiny_base(layers=2)  # hidden 36, queries 24
    with pytest.raises(AdapterError, match="q of hidden × hidden; this base's is 24 × 36"):
        random_adapter(other, QV).save(tmp_path / "out", "hesper")


def test_absurd_headers_and_sizes_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    adapter = random_adapter(BASE, QV)
    good = by_hand(adapter, 3, 6)
    wrong = {
        "truncated: 10 bytes": good[:10],
        "version 2 of Hesper's format; expected 1": by_hand(adapter, 3, 6, version=2),
        "rank 0 and 2 layers": by_hand(adapter, 0, 6),
        "made for 4294967295 layers, this base has 2": by_hand(adapter, 3, 6, layers=2**32 - 1),
        "rank 4294967295 and this base's hidden 24": by_hand(adapter, 2**32 - 1, 6),
        "alpha is nan": by_hand(adapter, 3, float("nan")),
        "alpha is -1.0": by_hand(adapter, 3, -1),
        f"{len(good) - 4} bytes; rank 3 and": good[:-4],
        f"{len(good) + 1} bytes; rank 3 and": good + b"x",
        "not finite": good[:24] + struct.pack("<f", float("inf")) + good[28:],
    }
    for message, content in wrong.items():
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(AdapterError) as caught:
            Adapter.load(tmp_path / "x", BASE)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
