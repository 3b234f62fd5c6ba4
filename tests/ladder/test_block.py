"""One block forwards and backwards on a device equals the definitions in float64, for any gradient from above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.harness import Floats, Gradients, Ours, close_gradients, error, random_adapter
from tiny_models import make_hf
from tritune.backends.base import Backend, Rows
from tritune.lora import LoRAConfig
from tritune.models.backward import BackwardBuffers, block_backward
from tritune.models.batch import Piece, RowBuffers
from tritune.models.block_buffers import BlockBuffers, QuantBuffers

EXACT = 1e-5
LENGTHS = (9, 1, 17, 5)
ROWS = sum(LENGTHS) + 3
KINDS: dict[str, dict[str, Any]] = {
    "bitnet relu2": {"hidden": 60, "heads": 3, "kv_heads": 1, "ffn": 132},
    "bitnet silu": {"hidden": 36, "heads": 3, "kv_heads": 3, "ffn": 52, "act": "silu"},
    "llama": {"model_type": "llama", "hidden": 44, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 100},
}


def run_block(backend: Backend, directory: Path, first: bool) -> tuple[dict[str, Floats], Gradients]:
    """Forward of random hidden states, backward of a random gradient: what comes out, and the adapter's gradients."""
    ours = Ours(backend, directory, "float")
    model, config = ours.model, ours.config
    adapter = random_adapter(config, LoRAConfig(rank=3, alpha=5), b_std=0.2)
    pool = ours.pool(adapter)
    rng = np.random.default_rng(1)
    used = slice(0, sum(LENGTHS))

    batch = RowBuffers(backend, ROWS, len(LENGTHS))
    batch.write([Piece([0] * n, 0, slot=i % 2, multiplier=0.5 + i) for i, n in enumerate(LENGTHS)], ROWS)
    rows: Rows = batch.rows
    shape = (ROWS, config.hidden_size)
    x, dy = (backend.upload(rng.normal(size=shape).astype(np.float32)) for _ in range(2))
    out, grads = backend.empty(shape), backend.empty(pool.flat.shape)
    block = BlockBuffers.make(backend, config, ROWS, pool.rank, floats=True, training=True)
    back = BackwardBuffers.make(backend, config, ROWS, pool.rank)
    assert block.mid is not None

    def attend(_: int, buffers: BlockBuffers) -> None:
        assert buffers.lse is not None
        backend.rope(buffers.qkv, model.rope, rows, *model.heads)
        backend.causal_attention(buffers.qkv, rows, buffers.o, buffers.lse, *model.heads)

    with backend.record() as program:
        model.block(0, rows, x, block.mid, out, block, QuantBuffers.make(backend, config, ROWS), pool, attend)
        backend.copy(dy, back.dx)
        block_backward(model, 0, rows, x, block, back, pool, grads, first)
    program.run()
    program.run()  # all but the adapter's gradient is written anew
    values = {"out": out, "mid": block.mid, "o": block.o, "dqkv": back.dqkv, "dx": back.dx}
    flat: Any = backend.read(grads)
    return {name: np.asarray(backend.read(b))[used] for name, b in values.items()}, adapter.tensors(flat)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_block(kind: str, first: bool, backend: Backend, reference: Backend, tmp_path: Path) -> None:
    directory = make_hf(tmp_path, layers=1, **KINDS[kind]).path
    found, gradients = run_block(backend, directory, first)
    expected, wanted = run_block(reference, directory, first)
    for name, value in expected.items():
        assert error(found[name], value) <= EXACT, name
    close_gradients(gradients, wanted, EXACT)
