"""Preference rows: whether a model finds the better answer likelier than the worse one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tritune.data import Example, PreferenceExample
from tritune.evaluation.scorer import Score
from tritune.evaluation.tasks import Metrics, accuracy


@dataclass(frozen=True)
class Preferences:
    """Pairs of answers."""

    pairs: Sequence[PreferenceExample]
    notes: Sequence[str] = ()
    name: str = "preferences"
    unit: str = "pairs"

    @property
    def count(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    def examples(self) -> Iterator[Example]:
        """The better answer and the worse one, pair after pair."""
        for pair in self.pairs:
            yield from pair.sequences

    def metrics(self, scores: Iterable[Score]) -> Metrics:
        """logps_chosen and logps_rejected: mean log-probability of an answer; margin: their difference; acc: share of
        the pairs whose better answer is the likelier one."""
        remaining = iter(scores)
        chosen, rejected = 0.0, 0.0
        right: list[bool] = []
        for _ in self.pairs:
            better, worse = (score.log_likelihood for score in islice(remaining, 2))
            chosen, rejected = chosen + better, rejected + worse
            right.append(better > worse)
        means = {"logps_chosen": chosen / self.count, "logps_rejected": rejected / self.count}
        return means | {"margin": means["logps_chosen"] - means["logps_rejected"]} | accuracy("acc", right)
