"""``tritune info --tune``: a device's tuning run, and its outcome as a table."""

from __future__ import annotations

from typing import Any

from tritune.backends.webgpu import open_webgpu
from tritune.backends.webgpu.choices import CANDIDATES
from tritune.backends.webgpu.tuning import Timing, tune
from tritune.backends.webgpu.tuning_file import save_tuning
from tritune.cli.errors import note


def tuned(device: str | None) -> dict[str, Any]:
    """Tune a device and keep what was chosen. Raises DeviceError; InputError where it cannot be written."""
    backend = open_webgpu(device or "webgpu")
    try:
        note(f"tuning {backend.description}: {len(CANDIDATES)} classes of shapes, about 20 seconds")
        timings = tune(backend, progress=_tell)
        path = save_tuning(backend.device.info.identity, backend.device.choices)
    finally:
        backend.close()
    return {
        "device": backend.description,
        "path": str(path),
        "classes": [timing._asdict() for timing in timings],
        "not_reached": [name for name in CANDIDATES if name not in [timing.name for timing in timings]],
    }


def tuning_text(outcome: dict[str, Any]) -> str:
    """The table for people."""
    width = max(len(row["name"]) for row in outcome["classes"])
    lines = [f"tuning of {outcome['device']}", f"  {'class':<{width}}  {'default':>10}  {'chosen':>10}   gain  choice"]
    for row in outcome["classes"]:
        times = f"{_time(row['default_seconds']):>10}  {_time(row['seconds']):>10}"
        gain = row["default_seconds"] / row["seconds"] - 1
        choice = "default" if row["choice"] is None else " ".join(map(str, row["choice"]))
        lines.append(f"  {row['name']:<{width}}  {times}  {gain:>4.0%}  {choice}")
    if outcome["not_reached"]:
        lines.append(f"  no time was left for these, which keep their defaults: {'; '.join(outcome['not_reached'])}")
    return "\n".join([*lines, f"  kept in {outcome['path']}"])


def _tell(timing: Timing) -> None:
    chosen = "its default" if timing.choice is None else f"{timing.default_seconds / timing.seconds - 1:.0%} faster"
    note(f"  {timing.name}: {chosen}")


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs"
