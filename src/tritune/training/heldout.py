"""The loss of rows that are not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tritune.data import Item, pack
from tritune.data.packing import fill
from tritune.training.objective import Objective

READ_EVERY = 16
"""Micro-batches whose losses are added up on the device, in float32, before the host adds them in float64."""


class HeldOut:
    """Held-out examples, measured with the buffers of a training state, between two of its steps."""

    def __init__(self, examples: Sequence[Item], max_tokens: int) -> None:
        """max_tokens: of a micro-batch."""
        self.examples = examples
        self._plan = fill([len(example) for example in examples], max_tokens)

    def loss(self, objective: Objective, check: Callable[[], None] = lambda: None) -> tuple[float, int]:
        """(mean loss per trained token or pair, their number): each weighs the same, whatever batch it falls into.

        Nothing is dropped, and the gradient and the optimizer are left alone. check is called before each micro-batch
        and may raise. Call it when no step is half done: the sums of the step are used and cleared.
        """
        state, total, count = objective.state, 0.0, 0
        try:
            for number, indices in enumerate(self._plan, start=1):
                check()
                batch = pack([self.examples[index] for index in indices])
                count += objective.forward_loss(batch)
                if number % READ_EVERY == 0 or number == len(self._plan):
                    total += state.read_loss()[0]
        finally:
            state.read_loss()
        return total / count, count
