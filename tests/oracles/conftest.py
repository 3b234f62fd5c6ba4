"""Fixtures of this room."""

from __future__ import annotations

from oracles.fixtures import make

__all__ = ["make"]
