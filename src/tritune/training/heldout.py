"""The loss of rows that are not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tritune.data import Example, pack
from tritune.data.batches import Batch
from tritune.data.packing import fill
from tritune.models.batch import Piece
from tritune.models.training_state import MicroBatch, TrainingState

READ_EVERY = 16
"""Micro-batches whose losses are added up on the device, in float32, before the host adds them in float64."""


def micro_batch(batch: Batch, max_rows: int) -> MicroBatch:
    """A packed batch as the training state takes it; every row uses the pool's first adapter."""
    starts = batch.q_start.tolist()
    pieces = [Piece(batch.tokens[a:b].tolist(), 0, 1) for a, b in pairwise(starts)]
    targets = np.full(max_rows, -1, np.int32)
    targets[: len(batch.targets)] = batch.targets
    return MicroBatch(pieces, targets)


class HeldOut:
    """Held-out examples, measured with the buffers of a training state, between two of its steps."""

    def __init__(self, examples: Sequence[Example], max_tokens: int) -> None:
        """max_tokens: of a micro-batch."""
        self.examples = examples
        self._plan = fill([len(example) for example in examples], max_tokens)

    def loss(self, state: TrainingState, check: Callable[[], None] = lambda: None) -> tuple[float, int]:
        """(mean loss per trained token, their number): every token weighs the same, whatever batch it falls into.

        Nothing is dropped, and the gradient and the optimizer are left alone. check is called before each micro-batch
        and may raise. Call it when no step is half done: the sums of the step are used and cleared.
        """
        total, count = 0.0, 0
        try:
            for number, indices in enumerate(self._plan, start=1):
                check()
                batch = pack([self.examples[index] for index in indices])
                state.forward_loss(micro_batch(batch, state.max_rows))
                count += batch.num_targets
                if number % READ_EVERY == 0 or number == len(self._plan):
                    total += state.read_loss()[0]
        finally:
            state.read_loss()
        return total / count, count
