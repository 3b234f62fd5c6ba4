"""The tuning run: every candidate of choices.py timed on a device, in ops of a typical shape with made-up numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tritune.backends.base import Buffer, LoRA, LoRAGrad, Rows
from tritune.errors import DeviceError

from .backend import WebGPUBackend
from .buffers import own_buffer
from .choices import CANDIDATES, Choice
from .profile import Profiler
from .program import WebGPUProgram
from .weights import WebGPUTernary

SECONDS = 20.0
"""What a run may take, in equal shares for the classes; what was not reached by then keeps its default."""
WORTH = 0.97
"""A candidate is chosen if it takes at most this share of the default's time; less is noise."""
_RUN_SECONDS = 2e-3  # of one program that is timed, at least
_WARM_SECONDS = 0.1
"""Work before a program is timed: the clocks of a GPU that waited are at a third, and rise while it works."""
_VOCABULARY = {"software": 2048, "discrete": 65536}  # a head of few rows does not fill a large GPU
_RANK = 16


class Timing(NamedTuple):
    """The outcome for one class of shapes."""

    name: str
    choice: Choice | None  # None: the default stays
    seconds: float  # of an op, as chosen
    default_seconds: float


def tune(
    backend: WebGPUBackend,
    *,
    seconds: float = SECONDS,
    names: Iterable[str] = CANDIDATES,
    progress: Callable[[Timing], None] | None = None,
) -> list[Timing]:
    """Time the candidates of the classes ``names`` and leave the best in ``backend.device.choices``.

    progress: told of each class when it is done. A class that was not reached is not in the result. Interrupted, the
    backend has the choices that it had before. Raises DeviceError for what a device refuses at its defaults; a
    candidate that it refuses is passed over.
    """
    before = backend.device.choices
    end = time.perf_counter() + seconds
    timings: list[Timing] = []
    chosen: dict[str, Choice] = {}
    try:
        with _Clock(backend) as clock:
            work = _Work(backend)
            left = [name for name in names if name != "splits" or not backend.device.info.software]
            while left and (now := time.perf_counter()) < end:
                share = now + (end - now) / len(left)
                name = left.pop(0)
                timing = _tune_class(clock, work.op(name), name, chosen, share)
                timings.append(timing)
                if timing.choice is not None:
                    chosen[name] = timing.choice
                if progress is not None:
                    progress(timing)
        before = chosen
    finally:
        backend.device.choices = before
    return timings


def _tune_class(
    clock: _Clock, op: Callable[[int], None], name: str, chosen: Mapping[str, Choice], end: float
) -> Timing:
    count = clock.count_for(op, chosen)
    default = clock.seconds(op, chosen, count)
    best, choice = default, None
    for candidate in CANDIDATES[name]:
        if time.perf_counter() > end:
            break
        try:
            spent = clock.seconds(op, {**chosen, name: candidate}, count, patience=best)
        except DeviceError:
            clock.backend.device.check("tuning")  # a lost device is not passed over
            continue
        if spent < best:
            best, choice = spent, candidate
    if choice is not None:  # both again, for the best of several is lucky too
        default = clock.seconds(op, chosen, count)
        best = clock.seconds(op, {**chosen, name: choice}, count)
    if choice is None or best > WORTH * default:
        return Timing(name, None, default, default)
    return Timing(name, choice, best, default)


class _Clock:
    """Times ops by the device's timestamps, or by the wall where it has none."""

    def __init__(self, backend: WebGPUBackend) -> None:
        self.backend = backend
        stamps = "timestamp-query" in backend.device.info.features
        self._profiler = Profiler(backend.device, backend.memory) if stamps else None
        self._warm_seconds = 0.0 if backend.device.info.software else _WARM_SECONDS

    def __enter__(self) -> _Clock:
        return self

    def __exit__(self, *_: object) -> None:
        if self._profiler is not None:
            self._profiler.close()

    def count_for(self, op: Callable[[int], None], choices: Mapping[str, Choice]) -> int:
        """How many of an op make a program that is long enough to be timed."""
        return min(64, max(1, round(_RUN_SECONDS / self.seconds(op, choices, 1))))

    def seconds(
        self, op: Callable[[int], None], choices: Mapping[str, Choice], count: int, patience: float = float("inf")
    ) -> float:
        """Seconds of one of ``count`` ops, ``op(0)``, ``op(1)`` and so on: the best of some runs.

        A first run that takes twice ``patience`` an op is the last.
        """
        self.backend.device.choices = choices
        with self.backend.record() as program:
            for i in range(count):
                op(i)
        assert isinstance(program, WebGPUProgram)
        try:
            self._warm(program)
            best = self._run(program)
            if best / count < 2 * patience:
                best = min(best, *(self._run(program) for _ in range(3)))
            return best / count
        finally:
            program.close()

    def _warm(self, program: WebGPUProgram) -> None:
        """Make caches and clocks what they are in use."""
        end = time.perf_counter() + self._warm_seconds
        self._run(program)
        while time.perf_counter() < end:
            program.run()
        self.backend.synchronize()

    def _run(self, program: WebGPUProgram) -> float:
        start = time.perf_counter()
        if self._profiler is not None:
            stamped = self._profiler.seconds_of(program)
            if stamped > 0:  # drivers may round them, and a reset counter runs backwards
                return stamped
        else:
            program.run()
            self.backend.synchronize()
        return time.perf_counter() - start


class _Work:
    """Ops of a layer of a 2B model; of a tiny one for a software renderer."""

    def __init__(self, backend: WebGPUBackend) -> None:
        self.backend = backend
        software = backend.device.info.software
        self._rng = np.random.default_rng(0)
        self._hidden, self._ffn, self._rows = (256, 512, 96) if software else (2560, 6912, 512)
        self._vocabulary = _VOCABULARY.get(backend.device.info.kind, 16384)
        # So many weights that none is still in a cache when it is read again, as in a model.
        room = min(backend.device.max_binding, 128 << 20)
        words = self._rng.integers(0, 1 << 32, (16 << 20 if software else room) // 4, dtype=np.uint32)
        words &= ~(words >> 1 & 0x55555555) | np.uint32(0xAAAAAAAA)  # the codes 0, 1 and 2, not 3
        self._words = backend.upload(words, "u32")

    def op(self, name: str) -> Callable[[int], None]:
        """What is timed for a class of choices.py."""
        if name == "products, more rows":
            return self._linear(self._rows, self._hidden, 2 * self._ffn)
        if name == "products, up to 64 rows":
            return self._linear(64, self._hidden, 2 * self._ffn)
        if name == "splits":
            return self._lora(self._rows, self._linear(self._rows // 4, self._ffn, self._hidden))
        rows = 1 if "1 to 2 rows" in name else 8
        if name.startswith("head"):
            return self._head(rows)
        inputs = 4352 if "more than" in name else self._hidden
        return self._linear(rows, inputs, 8192 if "many" in name else self._hidden)

    def _linear(self, rows: int, inputs: int, outputs: int) -> Callable[[int], None]:
        backend = self.backend
        codes = backend.upload(self._rng.integers(-127, 128, (rows, inputs)).astype(np.int8), "i8")
        x, scales, y, batch = (
            self._floats(rows, inputs),
            self._floats(rows),
            self._floats(rows, outputs),
            self._batch(rows),
        )
        batch, weights = self._batch(rows), self._weights(inputs, outputs)
        return lambda i: backend.linear(x, codes, scales, weights[i % len(weights)], y, batch)

    def _lora(self, rows: int, first: Callable[[int], None]) -> Callable[[int], None]:
        """``first``, then LoRA's products, forwards and backwards, with one of a layer's linears."""
        inputs, outputs, floats = self._hidden, self._ffn, self._floats
        x, y, dx, batch = floats(rows, inputs), floats(rows, outputs), floats(rows, inputs), self._batch(rows)
        a, b, scale = floats(1, _RANK, inputs), floats(1, outputs, _RANK), floats(1, 1)
        lora = LoRA(a, b, scale, _RANK, floats(rows, _RANK), floats(rows, _RANK))
        grad = LoRAGrad(floats(1, _RANK, inputs), floats(1, outputs, _RANK))
        weight = self._weights(inputs, outputs)[0]

        def op(i: int) -> None:
            first(i)
            self.backend.linear(x, None, None, weight, y, batch, lora=lora)
            self.backend.linear_backward(y, x, weight, batch, dx=dx, lora=lora, grad=grad)

        return op

    def _head(self, rows: int) -> Callable[[int], None]:
        values = self._rng.standard_normal((1024, self._hidden), np.float32).view(np.uint32) >> 16
        table = self.backend.table(np.resize(values.astype(np.uint16), (self._vocabulary, self._hidden)), "bf16")
        x, out = self._floats(rows, self._hidden), self._floats(rows, self._vocabulary)
        return lambda _: self.backend.logits(x, table, out)

    def _weights(self, inputs: int, outputs: int) -> list[WebGPUTernary]:
        """As many as there are words for, at least one."""
        words, row_scales = own_buffer(self._words), own_buffer(self._floats(outputs))
        shape = (outputs, -(-inputs // 16))
        size = -(-shape[0] * shape[1] // 64) * 64
        starts = range(0, words.size - size + 1, size)
        views = [words.view(start, shape) for start in starts] or [own_buffer(self.backend.empty(shape, "u32"))]
        return [WebGPUTernary(view, row_scales, (outputs,), (1.0,), inputs) for view in views]

    def _floats(self, *shape: int) -> Buffer:
        return self.backend.upload(self._rng.uniform(0.5, 1, shape).astype(np.float32))

    def _batch(self, count: int) -> Rows:
        """Rows of one sequence, all with adapter 1."""
        upload, index = self.backend.upload, np.arange(count)
        zeros = np.zeros(count)
        return Rows(
            tokens=upload(zeros, "i32"),
            positions=upload(index, "i32"),
            sequence=upload(zeros, "i32"),
            q_start=upload(np.array([0, count]), "i32"),
            slot=upload(np.ones(count), "i32"),
            multiplier=upload(np.ones(count)),
        )
