"""What the backends' benchmarks do, and how much work it is: adapters, training steps, multiply-adds and bytes."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tritune.backends.base import OPTIMIZER_SETTINGS, Backend, TernaryWeight
from tritune.lora import Adapter, AdapterPool, LoRAConfig
from tritune.models.batch import Piece
from tritune.models.bitnet import BitNet
from tritune.models.config import ModelConfig
from tritune.models.training_state import MicroBatch, TrainingState, next_token_targets
from tritune.models.weights import projection_shapes

RANK = 16
GB = 1e9


@dataclass(frozen=True)
class Work:
    """Multiply-adds of a token in all layers, and bytes that they read, by what they are."""

    config: ModelConfig
    ternary: float
    head: float
    lora: float
    ternary_bytes: float
    head_bytes: float
    lora_bytes: float  # of one adapter

    @classmethod
    def of(cls, model: BitNet, rank: int = RANK, head_bytes: float | None = None) -> Work:
        """head_bytes: what a token reads of the head (default: all of it)."""
        config = model.config
        shapes = projection_shapes(config).values()
        lora = config.num_layers * rank * sum(rows + columns for rows, columns in shapes)
        return cls(
            config=config,
            ternary=config.num_layers * sum(rows * columns for rows, columns in shapes),
            head=config.vocab_size * config.hidden_size,
            lora=lora,
            ternary_bytes=sum(weight.nbytes for weight in ternary_weights(model)),
            head_bytes=model.head.nbytes if head_bytes is None else head_bytes,
            lora_bytes=(2 if model.backend.f16_adapters else 4) * lora,
        )

    def attention(self, rows: int) -> float:
        """Multiply-adds of causal attention over ``rows`` rows of a sequence, forward."""
        return self.config.num_layers * self.config.num_heads * self.config.head_dim * rows * (rows + 1)

    def cache_bytes(self, positions: float) -> float:
        """Bytes of f16 keys and values that a token of this context reads."""
        return self.config.num_layers * 2 * self.config.kv_size * 2 * positions


def ternary_weights(model: BitNet) -> list[TernaryWeight]:
    """Every ternary matrix of a model."""
    return [weight for layer in model.layers for weight in (layer.qkv, layer.o, layer.gate_up, layer.down)]


def random_tokens(config: ModelConfig, count: int, seed: int) -> list[int]:
    """Token ids, the same for the same seed."""
    return np.random.default_rng(seed).integers(0, config.vocab_size, count).tolist()


def make_adapter(config: ModelConfig, seed: int = 1) -> Adapter:
    """All seven projections; B is not zero."""

    class Named:
        name = config.name

        def __init__(self) -> None:
            self.config = config

    adapter = Adapter.create(Named(), LoRAConfig(rank=RANK))
    adapter.parameters[:] = np.random.default_rng(seed).standard_normal(adapter.parameters.size, np.float32) * 0.02
    return adapter


def training_step(
    backend: Backend, model: BitNet, rows: int, *, sequences: int = 1, recompute: bool = True
) -> Callable[[int], None]:
    """A function of a seed that takes an optimizer step on sequences of ``rows`` rows, all of them trained.

    It does not wait for the device; ``backend.synchronize`` does.
    """
    adapter = make_adapter(model.config)
    pool = AdapterPool.for_adapters(backend, [adapter])
    total = sequences * rows
    state = TrainingState(model, pool, pool.flat, max_rows=total, max_sequences=sequences, recompute=recompute)
    numbers = dict.fromkeys(OPTIMIZER_SETTINGS, 0.0) | {"lr": 1e-5, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    numbers |= {"clip": 1.0, "one_minus_beta1": 0.1, "one_minus_beta2": 0.001}
    backend.write(state.settings, np.array(list(numbers.values()), np.float32))
    state.prepare()

    def step(seed: int) -> None:
        tokens = [random_tokens(model.config, rows, seed * sequences + i) for i in range(sequences)]
        targets = [next_token_targets(row, np.ones(rows, np.bool_)) for row in tokens]
        batch = MicroBatch([Piece(row, 0, 1) for row in tokens], np.concatenate(targets))
        state.forward_backward(batch, update=True)

    return step


def current_commit() -> str:
    """The commit of the working tree, if it is one."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


class Report:
    """Prints CSV lines: figure, given columns, value, unit, the most possible, the value's share of that, and where."""

    def __init__(self, device: str, *columns: object, commit: str | None = None) -> None:
        self._columns = columns
        self._tail = [device, commit or current_commit()]
        self._out = csv.writer(sys.stdout, lineterminator="\n")

    def row(self, figure: str, value: float, unit: str, most: float | None = None) -> None:
        beside = ["", ""] if most is None else [f"{most:.4g}", f"{value / most:.3f}"]
        self._out.writerow([figure, *self._columns, f"{value:.5g}", unit, *beside, *self._tail])
        sys.stdout.flush()
