"""A backend that can be watched and disturbed: each op of a program runs at once when the program is submitted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tritune.backends.base import Array, Backend, Buffer, Program, Stats

Arguments = dict[str, Any]
Hook = Callable[[Backend, Arguments, Callable[[], None]], None]
"""Called in place of an op with the backend, the op's arguments by name, and what runs the op."""

MEMORY = {
    "reserve",
    "empty",
    "empty_together",
    "write",
    "read",
    "upload",
    "pack_ternary",
    "table",
    "close",
    "record",
    "submit",
    "synchronize",
}
OPS = {
    name
    for name, value in inspect.getmembers(Backend, inspect.isfunction)
    if not name.startswith("_") and name not in MEMORY
}


class Tape(Program):
    """Calls to make one after the other."""

    def __init__(self, backend: Taped) -> None:
        self.calls: list[Callable[[], None]] = []
        self._backend = backend

    def fetch(self, buffer: Buffer) -> None:
        pass

    def run(self) -> None:
        self._backend.submit([self])

    def result(self, buffer: Buffer) -> Array:
        return self._backend.inner.read(buffer)


class Taped:
    """Passes everything on to ``inner``; ops with a hook go through it. Stands in for a Backend."""

    def __init__(self, inner: Backend, hooks: Mapping[str, Hook]) -> None:
        assert hooks.keys() <= OPS
        self.inner = inner
        self.hooks = hooks
        self._tape: Tape | None = None

    @property
    def stats(self) -> Stats:
        return self.inner.stats

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name not in OPS:
            return method
        hook = self.hooks.get(name)
        signature = inspect.signature(getattr(Backend, name))

        def op(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(self.inner, *args, **kwargs)
            bound.apply_defaults()

            def call() -> None:
                if hook is None:
                    method(*args, **kwargs)
                else:
                    hook(self.inner, bound.arguments, lambda: method(*args, **kwargs))

            if self._tape is None:
                call()
            else:
                self._tape.calls.append(call)

        return op

    @contextmanager
    def record(self) -> Iterator[Program]:
        tape = self._tape = Tape(self)
        try:
            yield tape
        finally:
            self._tape = None

    def submit(self, programs: Sequence[Program]) -> None:
        for program in programs:
            assert isinstance(program, Tape)
            for call in program.calls:
                call()


def capture(inner: Backend) -> tuple[Any, list[tuple[Any, Any]]]:
    """A backend over ``inner``, and the list to which it adds the codes and scales of every quantisation."""
    seen: list[tuple[Any, Any]] = []

    def hook(backend: Backend, arguments: Arguments, run: Callable[[], None]) -> None:
        run()
        if arguments["codes"] is not None:
            seen.append((backend.read(arguments["codes"]), backend.read(arguments["scales"])))

    return Taped(inner, {"rms_norm_quant": hook, "glu_norm_quant": hook}), seen
