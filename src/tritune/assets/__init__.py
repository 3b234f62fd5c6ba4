"""Data that travels with tritune: the built-in model, and the rows that the demo trains on."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

BUILTIN_MODEL = _HERE / "tritune-stories-45m"
"""Directory of the built-in model, in Hugging Face's layout."""

DEMO_ROWS = _HERE / "demo.jsonl"
"""Chat rows that the demo trains on."""

DEMO_HELDOUT_ROWS = _HERE / "demo_heldout.jsonl"
"""Chat rows of the same behaviour with other questions, for measuring and showing what was learned."""
