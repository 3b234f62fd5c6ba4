"""What a run minimises: a loss of packed batches, whose gradient goes to the device's sums."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Protocol

import numpy as np

from tritune.data.batches import Batch
from tritune.models.batch import Piece
from tritune.models.training_state import MicroBatch, TrainingState


class Objective(Protocol):
    """A loss: the sum over some units (trained tokens, pairs), which the optimizer step divides by their number."""

    @property
    def state(self) -> TrainingState:
        """Where sums and gradients are."""
        ...

    def prepare(self, evaluation: bool) -> None:
        """Make every program now, so that no device object is made in the step loop."""
        ...

    def forward_backward(self, batch: Batch, *, update: bool) -> None:
        """Add a batch's gradient, loss and number of units; update: end the optimizer step."""
        ...

    def forward_loss(self, batch: Batch) -> int:
        """Add a batch's loss and number of units (also returned), without dropout and without a gradient."""
        ...

    def take_metrics(self, held_out: bool = False) -> Mapping[str, float]:
        """Further numbers of the batches since the last call, of those with a gradient or of the others."""
        ...


class SupervisedObjective:
    """Cross entropy of the trained tokens."""

    def __init__(self, state: TrainingState) -> None:
        self.state = state

    def prepare(self, evaluation: bool) -> None:
        """See Objective."""
        self.state.prepare(evaluation)

    def forward_backward(self, batch: Batch, *, update: bool) -> None:
        """One submit; nothing is read back."""
        self.state.forward_backward(micro_batch(batch, self.state.max_rows), update=update)

    def forward_loss(self, batch: Batch) -> int:
        """See Objective."""
        self.state.forward_loss(micro_batch(batch, self.state.max_rows))
        return batch.num_targets

    def take_metrics(self, held_out: bool = False) -> Mapping[str, float]:
        """None: the loss says it all."""
        return {}


def micro_batch(batch: Batch, max_rows: int) -> MicroBatch:
    """A packed batch as the training state takes it; every row uses the pool's first adapter."""
    starts = batch.q_start.tolist()
    pieces = [Piece(batch.tokens[a:b].tolist(), 0, 1) for a, b in pairwise(starts)]
    targets = np.full(max_rows, -1, np.int32)
    targets[: len(batch.targets)] = batch.targets
    return MicroBatch(pieces, targets)
