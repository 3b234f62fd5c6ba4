"""Direct Preference Optimization (Rafailov et al., 2023), with TRL's sigmoid loss and the names of its logs.

For a pair, Δ = (log π(chosen) - log ref(chosen)) - (log π(rejected) - log ref(rejected)), and the loss is
-(1 - ε) log σ(βΔ) - ε log σ(-βΔ); ε is the label smoothing of conservative DPO (Mitchell, 2023), which TRL 0.x had
here and TRL 1.x has not. The reference is the same base on the same buffers: with the adapter off, or under a frozen
copy of the adapter that the run started from (as in TRL). So it costs a forward, and no second base.

The gradient is exact: a forward gives the log-probabilities, the host makes a coefficient for each row of them, and
cross_entropy's backward takes the coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritune.data.batches import Batch
from tritune.models.block_buffers import Adapters
from tritune.models.training_state import TrainingState
from tritune.training.objective import micro_batch

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class PairLosses:
    """Of P pairs. ``loss`` and its derivative ``slope`` for Δ, float64 [P]; rewards β (log π - log ref)."""

    loss: Reals
    slope: Reals
    chosen_rewards: Reals
    rejected_rewards: Reals


def sigmoid_loss(policy: Reals, reference: Reals, beta: float, label_smoothing: float = 0.0) -> PairLosses:
    """TRL's ``loss_type="sigmoid"`` of log-probabilities [2 P], chosen and rejected in turns."""
    rewards = beta * (policy - reference)
    chosen, rejected = rewards[0::2], rewards[1::2]
    margin = chosen - rejected
    loss = (1 - label_smoothing) * np.logaddexp(0, -margin) + label_smoothing * np.logaddexp(0, margin)
    wrong = np.exp(-np.logaddexp(0, margin))  # σ(-βΔ)
    slope = beta * (label_smoothing * (1 - wrong) - (1 - label_smoothing) * wrong)
    return PairLosses(loss, slope, chosen, rejected)


class _Means:
    """Means over all pairs since they were taken last."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._pairs = 0

    def add(self, losses: PairLosses, policy: Reals) -> None:
        chosen, rejected = losses.chosen_rewards, losses.rejected_rewards
        values = {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/accuracies": chosen > rejected,
            "rewards/margins": chosen - rejected,
            "logps/chosen": policy[0::2],
            "logps/rejected": policy[1::2],
        }
        for name, numbers in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(numbers.sum())
        self._pairs += len(chosen)

    def take(self) -> dict[str, float]:
        means = {name: total / self._pairs for name, total in self._sums.items()}
        self.__init__()
        return means


class PreferenceObjective:
    """The loss of packed pairs: of each, the chosen sequence and then the rejected one."""

    def __init__(
        self, state: TrainingState, reference: Adapters | None, beta: float, label_smoothing: float = 0.0
    ) -> None:
        """reference: an adapter of the state's rank, or None: the base."""
        self.state = state
        self.beta = beta
        self.label_smoothing = label_smoothing
        self._reference = state.reference_program(reference)
        self._trained, self._held_out = _Means(), _Means()

    def prepare(self, evaluation: bool) -> None:
        """See Objective."""
        self.state.prepare_scoring()
        if evaluation:
            self.state.evaluation_program()

    def forward_backward(self, batch: Batch, *, update: bool) -> None:
        """Three submits: the reference, the model, the gradient."""
        losses, policy = self._losses(batch, training=True)
        self._trained.add(losses, policy)
        # A log-probability is minus the sum of its rows' nll.
        of_sequence = np.empty(2 * len(losses.slope))
        of_sequence[0::2], of_sequence[1::2] = -losses.slope, losses.slope
        coefficients = of_sequence[batch.sequence[batch.targets >= 0]].astype(np.float32)
        micro = micro_batch(batch, self.state.max_rows)
        self.state.backward(micro, coefficients, float(losses.loss.sum()), len(losses.loss), update=update)

    def forward_loss(self, batch: Batch) -> int:
        """See Objective."""
        losses, policy = self._losses(batch, training=False)
        self._held_out.add(losses, policy)
        self.state.add_loss(float(losses.loss.sum()), len(losses.loss))
        return len(losses.loss)

    def take_metrics(self, held_out: bool = False) -> Mapping[str, float]:
        """rewards/… and logps/… as TRL has them: means over the pairs."""
        return (self._held_out if held_out else self._trained).take()

    def _losses(self, batch: Batch, training: bool) -> tuple[PairLosses, Reals]:
        state = self.state
        micro = micro_batch(batch, state.max_rows)
        rows = batch.sequence[batch.targets >= 0]

        def log_probabilities(nll: NDArray[np.float32]) -> Reals:
            sums = np.bincount(rows, nll.astype(np.float64), minlength=len(batch.q_start) - 1)
            return -sums.astype(np.float64)

        reference = log_probabilities(state.score(micro, self._reference))
        forward = state.forward_program if training else state.evaluation_program()
        policy = log_probabilities(state.score(micro, forward))
        return sigmoid_loss(policy, reference, self.beta, self.label_smoothing), policy
