"""The output head in int8: how far its rows and logits may be from those that are stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritune
from tiny_models import from_bf16, make_hf, to_bf16
from tritune.backends.numpy import NumpyBackend
from tritune.backends.numpy.buffers import NumpyTable
from tritune.errors import ConfigError, DeviceError
from tritune.models.bitnet import BitNet
from tritune.models.int8_head import Int8Rows
from tritune.models.weights import FloatTable, open_model

TEXT = (
    "Once upon a time there was a little girl who lived near the sea. Every morning she took her small red boat and "
    "went to look for shells. One day she found a shell that was larger than her hand, and it sang when she held it "
    "to her ear. She ran home to show it to her brother, who did not believe her until he heard the song himself."
)


def test_each_weight_is_off_by_half_a_scale_at_most() -> None:
    rng = np.random.default_rng(0)
    table = to_bf16(rng.normal(size=(3000, 48)) * rng.lognormal(size=(3000, 1)))
    table[7] = 0
    rows = Int8Rows(FloatTable(table, "bf16"))
    exact = from_bf16(table)
    codes = rows[:]
    assert codes.dtype == np.int8 and rows.scales.shape == (3000,) and np.abs(codes).max() == 127
    error = np.abs(codes * rows.scales[:, None].astype(np.float64) - exact)
    assert (error <= rows.scales[:, None] * 0.5001).all()
    assert not codes[7].any() and np.isfinite(rows.scales).all()
    np.testing.assert_array_equal(rows[100:200], codes[100:200])


@pytest.mark.parametrize("tie", [True, False])
def test_the_embedding_stays_as_stored(tmp_path: Path, tie: bool) -> None:
    made = make_hf(tmp_path, tie=tie)
    model = BitNet(NumpyBackend(), open_model(tmp_path), head="int8")
    assert (model.embedding.dtype, model.head.dtype) == ("bf16", "i8")
    assert isinstance(model.head, NumpyTable) and model.head.scales is not None
    head = made.floats["model.embed_tokens.weight" if tie else "lm_head.weight"]
    np.testing.assert_allclose(model.head.scales[:, None] * model.head.array, head, atol=np.abs(head).max() / 250)


def test_logits_change_little_and_greedy_tokens_mostly_not(cpu: Callable[..., Any]) -> None:
    found: dict[str, Any] = {}
    for head in ("stored", "int8"):
        model = tritune.load(device="cpu", head=head)  # type: ignore[arg-type]
        found[head] = model.logits(model.tokenizer.encode_prompt(TEXT))
        model.close()
    stored, int8 = found["stored"], found["int8"]
    assert 1e-4 < (int8 - stored).std() / stored.std() < 0.01
    assert (int8.argmax(axis=1) == stored.argmax(axis=1)).mean() > 0.95


def test_what_has_no_int8_head_says_so(request: pytest.FixtureRequest) -> None:
    with pytest.raises(ConfigError, match="head 'int4': expected stored or int8"):
        tritune.load(head="int4")  # type: ignore[arg-type]
    request.getfixturevalue("webgpu")
    with pytest.raises(DeviceError, match="head int8: WebGPU reads the output head as stored"):
        tritune.load(device="webgpu", head="int8")
