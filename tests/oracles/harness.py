"""One place through which the exactness tests run tritune: a model of a directory, on a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import Backend
from tritune.lora import Adapter, AdapterPool, LoRAConfig
from tritune.models.batch import Piece
from tritune.models.bitnet import Activations, BitNet
from tritune.models.cache import BLOCK_SIZE, KVCache
from tritune.models.config import ModelConfig
from tritune.models.inference import InferenceState
from tritune.models.training_state import MicroBatch, TrainingState
from tritune.models.weights import open_model

Floats = NDArray[np.floating[Any]]
Gradients = dict[str, Floats]

EXACT = 1e-4
"""Largest relative error of ways a and b."""


@dataclass(frozen=True)
class Example:
    """A sequence, and which of its tokens are trained (as targets; the first one never is)."""

    ids: list[int]
    trained: NDArray[np.bool_]

    @property
    def targets(self) -> NDArray[np.int32]:
        """What each row is trained to predict: the next token, or -1."""
        following = np.array([*self.ids[1:], 0], np.int32)
        wanted = np.append(self.trained[1:], False)
        return np.where(wanted, following, -1).astype(np.int32)


def example(vocab: int, length: int, seed: int = 0, share: float = 0.6) -> Example:
    """Random tokens with a random mask, holes anywhere, at least one trained token."""
    rng = np.random.default_rng([seed, length])
    trained = rng.random(length) < share
    trained[0] = False
    trained[length // 2] = True
    return Example(rng.integers(0, vocab, length).tolist(), trained)


@dataclass(frozen=True)
class Named:
    """What Adapter.create wants to know of a model."""

    config: ModelConfig
    name: str = "tiny"


def random_adapter(config: ModelConfig, lora: LoRAConfig, seed: int = 0, b_std: float = 0.02) -> Adapter:
    """A as it is initialised, B ~ N(0, b_std): with B = 0 every dA would be zero."""
    adapter = Adapter.create(Named(config), lora, seed=seed)
    rng = np.random.default_rng([seed, 7])
    for name, matrix in adapter.tensors().items():
        if ".lora_B." in name:
            matrix[...] = rng.normal(0, b_std, matrix.shape)
    return adapter


def error(found: Floats, expected: Floats) -> float:
    """‖found − expected‖ / ‖expected‖."""
    wanted = np.asarray(expected, np.float64)
    return float(np.linalg.norm(np.asarray(found, np.float64) - wanted) / np.linalg.norm(wanted))


def worst(found: Gradients, expected: Gradients) -> tuple[float, str]:
    """The largest relative error of any tensor, and its name; the names must be the same."""
    assert found.keys() == expected.keys()
    return max((error(found[name], expected[name]), name) for name in expected)


def close_gradients(found: Gradients, wanted: Gradients, tolerance: float = EXACT) -> None:
    """Every tensor, by name; where the gradient is zero (q and k of a lone row, layers not trained) noise may stay."""
    largest = max(np.linalg.norm(value) for value in wanted.values())
    still = {name for name, value in wanted.items() if not value.any()}
    assert all(np.linalg.norm(found[name]) <= 1e-6 * largest for name in still)
    value, name = worst(
        {n: g for n, g in found.items() if n not in still}, {n: g for n, g in wanted.items() if n not in still}
    )
    assert value <= tolerance, name


def batch_of(examples: Sequence[Example], rows: int, slot: int = 1) -> MicroBatch:
    """Examples packed one after the other; the rest of the rows is spare."""
    targets = np.full(rows, -1, np.int32)
    start = 0
    for item in examples:
        targets[start : start + len(item.ids)] = item.targets
        start += len(item.ids)
    return MicroBatch([Piece(item.ids, 0, slot) for item in examples], targets)


class Ours:
    """A model on a backend."""

    def __init__(self, backend: Backend, directory: Path, activations: Activations = "int8") -> None:
        self.backend = backend
        self.source = open_model(directory)
        self.config = self.source.config
        self.model = BitNet(backend, self.source, activations)

    def inference(
        self, adapters: AdapterPool | None, rows: int, sequences: int = 1, blocks: int = 4, cache: Any = "f32"
    ) -> InferenceState:
        """A state with a cache of its own."""
        kv = KVCache(self.backend, self.config, blocks, cache)
        return InferenceState(self.model, kv, max_rows=rows, max_sequences=sequences, adapters=adapters)

    def pool(self, *adapters: Adapter) -> AdapterPool:
        """The adapters on the device."""
        return AdapterPool.for_adapters(self.backend, list(adapters))

    def logits(self, ids: list[int], adapter: Adapter | None = None, multiplier: float = 1.0) -> Floats:
        """Logits [T, V] of one sequence, prefilled at once."""
        pool = None if adapter is None else self.pool(adapter)
        state = self.inference(pool, len(ids), blocks=-(-len(ids) // BLOCK_SIZE))
        blocks = [state.cache.allocate() for _ in range(state.cache.num_blocks)]
        return state.logits([Piece(ids, 0, 0 if adapter is None else 1, multiplier, blocks)])

    def training(
        self, adapter: Adapter, rows: int, dropout: tuple[float, int, int] | None = None, **options: Any
    ) -> TrainingState:
        """A state that trains a copy of the adapter on the device; dropout: rate, seed, step."""
        pool = self.pool(adapter)
        if dropout is not None:
            pool.set_dropout(dropout[0], self.backend.upload(np.array(dropout[1:], np.uint32), "u32"))
        return TrainingState(self.model, pool, pool.flat, max_rows=rows, **options)

    def sums(self, state: TrainingState, adapter: Adapter) -> tuple[float, int, Gradients]:
        """(summed loss, trained tokens, summed gradients by PEFT name) that have gathered in a state."""
        totals = self.backend.read(state.totals)
        flat: Any = self.backend.read(state.grads)
        named = {name: view.astype(np.float64) for name, view in adapter.tensors(flat).items()}
        return float(totals[0]), int(totals[1]), named

    def loss_and_gradients(
        self, examples: Sequence[Example], adapter: Adapter, *, spare: int = 3, **options: Any
    ) -> tuple[float, Gradients]:
        """Mean loss over the trained tokens of packed examples, and its gradients."""
        rows = sum(len(item.ids) for item in examples) + spare
        state = self.training(adapter, rows, **options)
        state.forward_backward(batch_of(examples, rows))
        loss, tokens, gradients = self.sums(state, adapter)
        return loss / tokens, {name: grad / tokens for name, grad in gradients.items()}
