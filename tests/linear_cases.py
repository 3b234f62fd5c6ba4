"""What the tests of linear and linear_backward share: a linear with adapters and a batch of rows, on any backend."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import Backend, Buffer, Dropout, LoRA, LoRAGrad, Rows, TernaryWeight

# (T, K, parts): one row, few rows, tiles that end early; columns that are multiples of 4 but not of 16; parts that
# share a tile.
SHAPES = [
    (1, 20, (12,)),
    (3, 36, (8, 4, 4)),
    (8, 64, (64, 64)),
    (9, 100, (68, 20, 4)),
    (127, 20, (4, 8)),
    (129, 36, (132,)),
]


class Case:
    """Random numbers for one linear of ``parts``, T rows and a pool of adapters, the same on every backend."""

    def __init__(
        self, rng: np.random.Generator, tokens: int, in_features: int, parts: tuple[int, ...], rank: int, pool: int
    ) -> None:
        out_features, width = sum(parts), len(parts) * rank
        self.parts = [
            (rng.integers(-1, 2, (n, in_features)).astype(np.int8), float(rng.uniform(0.5, 2))) for n in parts
        ]
        self.x = rng.normal(size=(tokens, in_features))
        self.codes = rng.integers(-128, 128, (tokens, in_features)).astype(np.int8)
        self.scales = rng.uniform(1, 100, tokens)
        self.y = rng.normal(size=(tokens, out_features))
        self.dy = rng.normal(size=(tokens, out_features))
        self.slot = rng.integers(0, pool + 1, tokens)
        self.multiplier = rng.uniform(0.5, 2, tokens)
        self.a = rng.normal(size=(pool, width, in_features))
        self.b = rng.normal(size=(pool, out_features, rank))
        self.scale = rng.uniform(0.5, 2, (pool, len(parts)))
        self.da = rng.normal(size=(1, width, in_features))
        self.db = rng.normal(size=(1, out_features, rank))
        self.rank = rank
        self.half = False

    def round_adapters(self) -> None:
        """From now on the adapters are numbers of f16, and in WebGPU's memory f16."""
        self.a, self.b = (array.astype(np.float16).astype(np.float64) for array in (self.a, self.b))
        self.half = True

    def weight(self, backend: Backend) -> TernaryWeight:
        """The ternary matrix."""
        return backend.pack_ternary(self.parts)

    def rows(self, backend: Backend) -> Rows:
        """The batch; its last row is spare."""
        tokens = len(self.slot)
        positions = np.arange(tokens)
        positions[-1] = -1
        zeros = backend.upload(np.zeros(tokens), "i32")
        return Rows(
            tokens=zeros,
            positions=backend.upload(positions, "i32"),
            sequence=zeros,
            q_start=backend.upload(np.array([0, tokens]), "i32"),
            slot=backend.upload(self.slot, "i32"),
            multiplier=backend.upload(self.multiplier),
        )

    def lora(self, backend: Backend, down: NDArray[Any] | None = None) -> LoRA:
        """The pool. down, down_grad: filled with ones where not given, so that unwritten elements show."""
        shape = (len(self.slot), self.a.shape[1])
        dtype = "f16" if self.half and backend.name == "webgpu" else "f32"
        a, b, scale = backend.upload(self.a, dtype), backend.upload(self.b, dtype), backend.upload(self.scale)
        ones = np.ones(shape)
        return LoRA(a, b, scale, self.rank, backend.upload(ones if down is None else down), backend.upload(ones))

    def down(self) -> NDArray[Any]:
        """Numbers for A x as linear leaves them: zero in rows without an adapter."""
        return (
            np.sin(np.arange(len(self.slot) * self.a.shape[1])).reshape(len(self.slot), -1) * (self.slot > 0)[:, None]
        )

    def grad(self, backend: Backend) -> LoRAGrad:
        """Gradients that hold something already."""
        return LoRAGrad(backend.upload(self.da), backend.upload(self.db))


def dropout(backend: Backend, rate: float, module: int = 5) -> Dropout:
    """Dropout in step 2^31 + 7 of seed 3."""
    return Dropout(rate, module, backend.upload(np.array([3, 2**31 + 7], dtype=np.uint32), "u32"))


def forward(
    case: Case, backend: Backend, *, codes: bool, accumulate: bool, pool: bool, rate: float
) -> dict[str, Buffer]:
    """linear's outputs."""
    y = backend.upload(case.y)
    lora = case.lora(backend) if pool else None
    backend.linear(
        backend.upload(case.x),
        backend.upload(case.codes, "i8") if codes else None,
        backend.upload(case.scales) if codes else None,
        case.weight(backend),
        y,
        case.rows(backend),
        accumulate=accumulate,
        lora=lora,
        dropout=dropout(backend, rate) if rate else None,
    )
    return {"y": y} if lora is None else {"y": y, "down": lora.down}
