"""Profile: where the time of programs goes, by op and by the kernels inside of it."""

from __future__ import annotations

from dataclasses import dataclass, field

COLUMNS = ("op", "calls", "ms", "%", "µs/call", "GB/s", "GFLOP/s")


@dataclass
class KernelTime:
    """Runs of a kernel inside of an op."""

    calls: int = 0
    seconds: float = 0.0


@dataclass
class OpTime:
    """Runs of an op. ``exact``: how much it does is known, and not only the most that there can be."""

    calls: int = 0
    flops: float = 0.0
    nbytes: float = 0.0
    exact: bool = True
    kernels: dict[str, KernelTime] = field(default_factory=dict[str, KernelTime])

    @property
    def seconds(self) -> float:
        """Of all runs."""
        return sum(kernel.seconds for kernel in self.kernels.values())

    def rate(self, amount: float) -> str:
        """``amount`` a second in units of 10^9, empty where it is not known."""
        return f"{amount / self.seconds / 1e9:.1f}" if self.exact and amount and self.seconds else ""


class Profile:
    """Time of each op, summed over all programs that ran while it was taken: see ``Backend.profile``."""

    def __init__(self) -> None:
        self.ops: dict[str, OpTime] = {}

    def add(self, op: str, kernel: str, seconds: float, calls: int = 1) -> None:
        """Count runs of a kernel inside of an op."""
        time = self.ops.setdefault(op, OpTime()).kernels.setdefault(kernel, KernelTime())
        time.calls += calls
        time.seconds += seconds

    def rows(self) -> list[tuple[str, ...]]:
        """The table, an entry for each of COLUMNS, slowest op first; an op's kernels follow it, indented.

        GB/s counts each buffer of an op once. What is not known is left empty.
        """
        total = sum(op.seconds for op in self.ops.values()) or 1.0
        rows: list[tuple[str, ...]] = []
        for name, op in sorted(self.ops.items(), key=lambda item: -item[1].seconds):
            calls = op.calls or sum(kernel.calls for kernel in op.kernels.values())
            rows.append((*_row(name, calls, op.seconds, total), op.rate(op.nbytes), op.rate(op.flops)))
            if list(op.kernels) != [name]:
                ordered = sorted(op.kernels.items(), key=lambda item: -item[1].seconds)
                rows += [(*_row(f"  {kernel}", time.calls, time.seconds, total), "", "") for kernel, time in ordered]
        calls = sum(kernel.calls for op in self.ops.values() for kernel in op.kernels.values())
        rows.append((*_row("all", calls, total, total), "", ""))
        return rows

    def table(self) -> str:
        """The rows as text."""
        rows = [COLUMNS, *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )


def _row(name: str, calls: int, seconds: float, total: float) -> tuple[str, ...]:
    counts = (str(calls), f"{1e6 * seconds / calls:.1f}") if calls else ("", "")
    return name, counts[0], f"{1e3 * seconds:.3f}", f"{100 * seconds / total:.1f}", counts[1]
