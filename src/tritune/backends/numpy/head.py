"""Loss, sampling and optimizer on the NumPy backend."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.backends.base import Buffer
from tritune.backends.numpy.calls import Calls, array, optional
from tritune.ops.adamw import adamw
from tritune.ops.add_loss import add_loss
from tritune.ops.arrays import BoolArray
from tritune.ops.cross_entropy import cross_entropy, cross_entropy_backward
from tritune.ops.global_norm import global_norm
from tritune.ops.sample import SampleSettings, sample


def _bits(words: NDArray[Any], count: int) -> BoolArray:
    """Bool [count] of u32 words, bit v % 32 of word v // 32."""
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:count].astype(np.bool_)


class HeadOps(Calls):
    """Ops behind the logits."""

    def cross_entropy(self, logits: Buffer, targets: Buffer, coefficients: Buffer, nll: Buffer, backward: bool) -> None:
        def call() -> None:
            array(nll)[...] = cross_entropy(array(logits), array(targets))
            if backward:
                array(logits)[...] = cross_entropy_backward(array(logits), array(targets), array(coefficients))

        self._do(call)

    def add_loss(self, nll: Buffer, coefficients: Buffer, totals: Buffer) -> None:
        self._do(lambda: add_loss(array(nll), array(coefficients), array(totals)))

    def sample(
        self,
        logits: Buffer,
        settings: Buffer,
        state: Buffer,
        seen: Buffer,
        allowed: Buffer | None,
        token: Buffer,
        logprob: Buffer,
    ) -> None:
        def call() -> None:
            rows = array(logits)
            limits = optional(allowed)
            for s, (row, numbers, counters) in enumerate(zip(rows, array(settings), array(state), strict=True)):
                how = SampleSettings(*(float(n) for n in numbers), top_k=int(counters[0]), seed=int(counters[1]))
                allow = None if limits is None else _bits(limits[s], row.size)
                drawn, log_probability = sample(row, how, int(counters[2]), _bits(array(seen)[s], row.size), allow)
                array(token)[s], array(logprob)[s] = drawn, log_probability
                array(seen)[s, drawn // 32] |= np.uint32(1) << np.uint32(drawn % 32)
                counters[2] += 1

        self._do(call)

    def global_norm(self, grads: Buffer, totals: Buffer, settings: Buffer, state: Buffer) -> None:
        self._do(lambda: global_norm(array(grads), array(totals), array(settings), array(state)))

    def adamw(self, parameters: Buffer, grads: Buffer, m: Buffer, v: Buffer, settings: Buffer, state: Buffer) -> None:
        self._do(lambda: adamw(array(parameters), array(grads), array(m), array(v), array(settings), array(state)))
