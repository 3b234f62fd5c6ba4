"""Reasons why rows cannot be used, counted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RowCounts:
    """Reasons why rows were refused: how often, and where first ("line 4")."""

    reasons: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])

    def add(self, reason: str, place: str) -> None:
        """Count one refused row."""
        count, first = self.reasons.get(reason, (0, place))
        self.reasons[reason] = (count + 1, first)

    @property
    def total(self) -> int:
        """Refused rows in all."""
        return sum(count for count, _ in self.reasons.values())

    @property
    def first(self) -> tuple[str, str]:
        """Reason and place of the first refused row (there is one)."""
        reason, (_, place) = next(iter(self.reasons.items()))
        return reason, place

    def __str__(self) -> str:
        most_first = sorted(self.reasons.items(), key=lambda item: -item[1][0])
        shown = [f"{count}× {reason} (first at {place})" for reason, (count, place) in most_first[:5]]
        more = len(most_first) - len(shown)
        return ", ".join(shown) + (f" and {more} other reasons" if more else "")
