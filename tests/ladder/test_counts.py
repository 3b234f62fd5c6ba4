"""What a loop costs: one submit for each micro-batch and for each token, no device object made, no buffer too many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oracles.harness import Ours, batch_of, example, random_adapter
from tiny_models import make_hf
from tritune.backends.base import OPTIMIZER_SETTINGS, SAMPLE_SETTINGS, SAMPLE_STATE, Backend
from tritune.lora import LoRAConfig
from tritune.models.batch import Piece

pytestmark = pytest.mark.usefixtures("no_collection")
LORA = LoRAConfig(rank=4, alpha=8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf(tmp_path_factory.mktemp("model"), hidden=32, ffn=52).path


@pytest.mark.parametrize("recompute", [True, False])
def test_training(recompute: bool, webgpu: Backend, directory: Path) -> None:
    ours = Ours(webgpu, directory)
    adapter = random_adapter(ours.config, LORA)
    state = ours.training(adapter, 150, recompute=recompute)
    webgpu.write(state.settings, np.full(len(OPTIMIZER_SETTINGS), 0.5, np.float32))
    state.prepare()
    # Another number of sequences and of trained tokens each time, so that the head takes each of its sizes.
    lengths = ((60, 60), (150,), (5,), (100, 7, 9))
    batches = [batch_of([example(ours.config.vocab_size, n, n) for n in each], 150) for each in lengths]
    webgpu.synchronize()
    stats = webgpu.stats
    submits, objects, allocated = stats.submits, stats.objects, stats.bytes_allocated
    for count, batch in enumerate(batches, 1):
        state.forward_backward(batch, update=count % 2 == 0)
        assert stats.submits - submits == count
    assert (stats.objects, stats.bytes_allocated) == (objects, allocated)
    assert ours.sums(state, adapter)[1] == 0  # the update has cleared them
    assert np.asarray(webgpu.read(state.totals))[3] == sum(int((b.targets >= 0).sum()) for b in batches)


@pytest.mark.parametrize("recompute", [True, False])
def test_what_another_layer_costs_in_training(recompute: bool, reference: Backend, tmp_path: Path, monkeypatch) -> None:
    """Memory: recomputed its input and the last linear's A x; kept its inside too, save the linears' normed inputs.
    Products: three are run again, not the last one, which backward does not need."""
    counts = {"elements": 0, "linears": 0}
    empty, linear = reference.empty, reference.linear

    def counting_empty(shape, dtype="f32"):
        counts["elements"] += int(np.prod(shape))
        return empty(shape, dtype)

    def counting_linear(*arguments, **named):
        counts["linears"] += 1
        linear(*arguments, **named)

    monkeypatch.setattr(reference, "empty", counting_empty)
    monkeypatch.setattr(reference, "linear", counting_linear)
    rows, spent = 64, []
    for layers in (1, 2):
        ours = Ours(reference, make_hf(tmp_path / str(layers), hidden=32, ffn=52, layers=layers).path)
        adapter = random_adapter(ours.config, LORA)
        counts.update(elements=0, linears=0)
        state = ours.training(adapter, rows, recompute=recompute)
        spent.append((counts["elements"] - 4 * state.parameters.size, counts["linears"]))
    config, kept = ours.config, ours.config.hidden_size + LORA.rank
    if not recompute:
        qkv = config.q_size + 2 * config.kv_size
        kept += qkv + config.q_size + config.num_heads + config.hidden_size + 2 * config.intermediate_size
        kept += 6 * LORA.rank
    (elements, linears), (more_elements, more_linears) = spent
    assert 0 <= more_elements - elements - kept * rows < 8 * rows  # and some numbers of the pool
    assert more_linears - linears == (4 + 3 if recompute else 4)


@pytest.mark.parametrize("adapted", [False, True])
def test_decoding(adapted: bool, webgpu: Backend, directory: Path) -> None:
    ours = Ours(webgpu, directory)
    pool = ours.pool(random_adapter(ours.config, LORA)) if adapted else None
    state = ours.inference(pool, rows=16, blocks=2)
    blocks = [state.cache.allocate() for _ in range(2)]
    words = -(-ours.config.vocab_size // 32)
    shape = (1, len(SAMPLE_SETTINGS)), (1, len(SAMPLE_STATE)), (1, words)
    state.set_sampling(np.full(shape[0], 1, np.float32), np.zeros(shape[1], np.uint32), np.zeros(shape[2], np.uint32))
    state.prepare(1)
    state.prepare(16)
    slot = int(adapted)
    webgpu.synchronize()
    stats = webgpu.stats
    submits, objects, allocated = stats.submits, stats.objects, stats.bytes_allocated
    ids = example(ours.config.vocab_size, 16).ids
    drawn = state.forward_and_sample([Piece(ids, 0, slot, 1.0, blocks)])
    for count in range(1, 30):  # across the end of the first block
        assert stats.submits - submits == count
        drawn = state.forward_and_sample([Piece([int(drawn.tokens[0])], 15 + count, slot, 1.0, blocks)])
    assert (stats.objects, stats.bytes_allocated) == (objects, allocated)


def test_inference_holds_no_backward_buffer(backend: Backend, directory: Path) -> None:
    """All that a state may allocate is known: rows, one block's forward, int8 codes, a head of one row, the cache."""
    ours = Ours(backend, directory)
    config, rows, rank = ours.config, 512, 4
    pool = ours.pool(random_adapter(config, LORA))
    before = backend.stats.bytes_allocated
    ours.inference(pool, rows=rows, blocks=1)
    used = backend.stats.bytes_allocated - before
    floats = {
        "x": config.hidden_size,
        "normed": 2 * config.hidden_size,
        "qkv, q, o": 3 * config.q_size + 2 * config.kv_size,
        "o normed": config.q_size,
        "gate, up, z": 3 * config.intermediate_size,
        "A x": 7 * rank,
        "scale": 1,
        "row": 5,
        "codes": max(config.hidden_size, config.intermediate_size) / 4,
    }
    head = 4 * config.vocab_size + 4096
    cache = 2 * config.num_layers * config.kv_size * 32 * 4
    assert used <= 1.01 * (rows * 4 * sum(floats.values()) + head + cache) + 256 * 64
    before = backend.stats.bytes_allocated
    ours.training(random_adapter(config, LORA), rows)
    assert backend.stats.bytes_allocated - before > 2 * used - cache
