"""Stop strings: the same text however it is cut into pieces, and nothing of a stop shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritune.errors import ConfigError
from tritune.text import StopStrings, cut_at_stop

SMALL = st.text(alphabet="ab\n", max_size=12)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


def by_definition(text: str, stops: list[str]) -> tuple[str, bool]:
    """The stop that is complete first, the longest of those: read character by character."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(SMALL, max_size=8), stops=STOPS)
def test_any_pieces(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    expected, stopped = by_definition(text, stops)
    shown = StopStrings(stops)
    out = ""
    for piece in pieces:
        out += shown.push(piece)
        assert expected.startswith(out)  # nothing was ever shown that must be taken back
    assert out + shown.flush() == expected
    assert shown.stopped is stopped
    assert cut_at_stop(text, stops) == (expected, stopped)


def test_text_is_held_back_no_longer_than_needed() -> None:
    filtered = StopStrings(["\nUser:"])
    assert filtered.push("Hello\nUs") == "Hello"
    assert filtered.push("ually") == "\nUsually"
    assert filtered.push(" fine\nUser") == " fine"
    assert filtered.push(": and more") == ""
    assert filtered.matched == "\nUser:"
    assert filtered.push("anything") == ""
    assert filtered.flush() == ""


def test_no_stops_pass_everything_at_once() -> None:
    assert StopStrings([]).push("text") == "text"


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        StopStrings(["a", ""])
