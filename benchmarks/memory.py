"""The memory that a process holds (Linux)."""

from __future__ import annotations

from pathlib import Path

GIB = 2**30


class Peak:
    """Peak resident memory since ``reset``, above what the process held when it was made."""

    def __init__(self) -> None:
        self._base = self._read("VmRSS")

    def reset(self) -> None:
        """Linux begins a new peak when told so."""
        Path("/proc/self/clear_refs").write_text("5")

    def gib(self) -> float:
        return (self._read("VmHWM") - self._base) / GIB

    def now_gib(self) -> float:
        """Held now."""
        return (self._read("VmRSS") - self._base) / GIB

    def _read(self, name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
