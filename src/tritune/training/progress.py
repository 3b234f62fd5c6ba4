"""The terminal's view of a run: what is trained, a bar with loss, tokens/s and time left, and what was saved."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from tritune.training.events import Callback, EvalLog, RunEnd, RunStart, SampleLog, StepLog

SHOWN = 1200
"""Most characters of the first example."""


class TerminalProgress(Callback):
    """Prints to a rich console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._task = None

    def on_start(self, start: RunStart) -> None:
        print_line = self.console.print
        print_line(f"device: {escape(start.device)}", highlight=False)
        print_line(
            f"trainable parameters: {start.trainable_parameters:,} · examples: {start.num_examples:,} "
            + (f"· held out: {start.num_eval_examples:,} " if start.num_eval_examples else "")
            + f"· optimizer steps: {start.total_steps:,}",
            highlight=False,
        )
        if start.resumed_step:
            print_line(f"going on after step {start.resumed_step:,}", highlight=False)
        for note in start.notes:
            print_line(f"[yellow]note:[/] {escape(note)}", highlight=False)
        print_line("first example (trained part in colour, between ⟦ ⟧):", highlight=False)
        print_line(_coloured(start.first_example))
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._task = self._progress.add_task(
            "training", total=start.total_steps, completed=start.resumed_step, status=""
        )
        self._progress.start()

    def on_step(self, step: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step)

    def on_log(self, log: StepLog) -> None:
        if self._progress is None or self._task is None:
            return
        status = f"loss {log.loss:.3f}{_accuracy(log)} · lr {log.lr:.1e} · "
        status += f"{log.tokens_per_second:.0f} tokens/s{_peak_memory()}"
        if log.skipped_steps:
            status += f" · [red]{log.skipped_steps} skipped[/]"
        self._progress.update(self._task, completed=log.step, status=status)
        if not self.console.is_terminal:  # a log file gets lines instead of a moving bar
            self.console.print(
                f"step {log.step}/{log.total_steps} loss {log.loss:.4f}{_accuracy(log)} lr {log.lr:.2e} "
                f"grad norm {log.grad_norm:.3f} {log.tokens_per_second:.0f} tokens/s",
                highlight=False,
            )

    def on_eval(self, log: EvalLog) -> None:
        better = " (the best so far)" if log.best else ""
        more = _accuracy(log) or f" perplexity {log.eval_perplexity:.2f}"
        self.console.print(
            f"step {log.step} held-out loss {log.eval_loss:.4f}{more}{better}",
            highlight=False,
        )

    def on_sample(self, sample: SampleLog) -> None:
        self.console.print(f"step {sample.step} {escape(sample.prompt)!r} → {escape(sample.text)!r}", highlight=False)

    def on_save(self, path: Path, step: int) -> None:
        self.console.print(f"saved the adapter after step {step}: {escape(str(path))}", highlight=False)

    def on_end(self, end: RunEnd) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        for note in end.notes:
            self.console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
        if end.reason == "patience":
            self.console.print(f"stopped after step {end.step}: the held-out loss falls no more", highlight=False)
        if end.best_step is not None:
            self.console.print(
                f"lowest held-out loss: {end.best_eval_loss:.4f}, after step {end.best_step}", highlight=False
            )


def _peak_memory() -> str:
    """The most host memory that the process has held, where the system tells."""
    try:
        import resource
    except ImportError:  # Windows
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return f" · {peak / 2**30:.1f} GiB"


def _accuracy(log: StepLog | EvalLog) -> str:
    """Of dpo: the share of the pairs whose chosen answer won."""
    share = log.metrics.get("rewards/accuracies")
    return "" if share is None else f" accuracy {share:.2f}"


def _coloured(example: str) -> Text:
    text = Text()
    shown = example if len(example) <= SHOWN else example[:SHOWN] + " …"
    for index, part in enumerate(shown.split("⟦")):
        if index == 0:
            text.append(part, style="dim")
            continue
        trained, _, rest = part.partition("⟧")
        text.append(f"⟦{trained}⟧", style="green")
        text.append(rest, style="dim")
    return text
