"""Stop strings in streamed text: nothing of a stop, and nothing after it, ever leaves the filter.

Which stop counts does not depend on how the text was cut into pieces: the one that is complete first, and of those
complete at the same character the longest.
"""

from __future__ import annotations

from collections.abc import Iterable

from tritune.errors import ConfigError


class StopStrings:
    """A filter for one streamed answer. ``stopped`` turns true, and stays so, when a stop string was met."""

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises ConfigError for an empty stop string, which would match everywhere."""
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise ConfigError("stop: a stop string must not be empty")
        self._held = ""
        self.matched: str | None = None
        """The stop string that was met, or None."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met."""
        return self.matched is not None

    def push(self, piece: str) -> str:
        """The text that may be shown now that ``piece`` has arrived; holds back what may be the beginning of a stop."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = self._first_match(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[:start]
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, at the end of a text in which no stop was met."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        starts = ((text.find(stop), stop) for stop in self._stops)
        matches = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


def cut_at_stop(text: str, stops: Iterable[str]) -> tuple[str, bool]:
    """``text`` up to the first stop string, and whether there was one: the filter on a text in one piece."""
    filtered = StopStrings(stops)
    kept = filtered.push(text)
    return kept + filtered.flush(), filtered.stopped
