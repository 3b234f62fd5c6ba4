"""The WebGPU backend."""

from __future__ import annotations
