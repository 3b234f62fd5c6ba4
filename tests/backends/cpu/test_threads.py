"""The pool: results do not depend on the number of threads, and threads get along with one another."""

from __future__ import annotations

import threading
import time

import numpy as np
import psutil
import pytest

from tritune.backends.cpu import threads


def everything(backend, rng_seed=0):
    """Bytes of what row ops, optimizer and sampler write."""
    rng = np.random.default_rng(rng_seed)
    x, gain = backend.upload(rng.normal(size=(37, 64))), backend.upload(rng.normal(size=64))
    normed, codes, scales = backend.empty((37, 64)), backend.empty((37, 64), "i8"), backend.empty((37,))
    backend.rms_norm_quant(x, gain, 1e-5, normed, codes, scales)
    gate_up, dy = backend.upload(rng.normal(size=(37, 128))), backend.upload(rng.normal(size=(37, 64)))
    backend.glu_backward(gate_up, "silu", gain, 1e-5, dy, gate_up)
    grads, totals = backend.upload(rng.normal(size=100_003)), backend.upload(np.array([1.0, 4, 0, 0]))
    settings = backend.upload(np.array([1e-2, 0.9, 0.999, 1e-8, 0.1, 1.0, 0.1, 0.001]))
    state, moments = backend.empty((8,)), [backend.empty((100_003,)) for _ in range(3)]
    backend.global_norm(grads, totals, settings, state)
    backend.adamw(moments[0], grads, moments[1], moments[2], settings, state)
    logits, token, logprob = backend.upload(rng.normal(size=(5, 999))), backend.empty((5,), "i32"), backend.empty((5,))
    how, counters = backend.upload(np.tile([1.0, 0.9, 0, 1.1], (5, 1))), backend.empty((5, 4), "u32")
    backend.sample(logits, how, counters, backend.empty((5, 32), "u32"), None, token, logprob)
    written = (normed, codes, scales, gate_up, state, *moments, token, logprob)
    return [backend.read(buffer).tobytes() for buffer in written]


@pytest.mark.parametrize("count", [2, 3, 7])
def test_results_do_not_depend_on_the_number_of_threads(cpu, count):
    assert everything(cpu(threads=count)) == everything(cpu(threads=1))


def test_many_short_rounds(cpu):
    """Rounds that follow one another faster than threads wake, on more threads than processors."""
    backend = cpu(threads=7)
    x, y = backend.upload(np.arange(7 * (1 << 13), dtype=np.float32)), backend.empty((7 * (1 << 13),))
    with backend.record() as program:
        for _ in range(100):
            backend.copy(x, y)
            backend.zero(x)
            backend.copy(y, x)
    for _ in range(20):
        program.run()
    np.testing.assert_array_equal(backend.read(x), np.arange(7 * (1 << 13)))


def test_two_python_threads_take_turns(cpu):
    backend = cpu(threads=3)
    programs = []
    for start in (0.0, 1e6):
        x, y = backend.upload(start + np.arange(50_000)), backend.empty((50_000,))
        with backend.record() as program:
            for _ in range(20):
                backend.copy(x, y)
            program.fetch(y)
        programs.append((program, y, start))

    def run(program):
        for _ in range(20):
            program.run()

    workers = [threading.Thread(target=run, args=(program,)) for program, _, _ in programs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for program, y, start in programs:
        np.testing.assert_array_equal(program.result(y), np.float32(start) + np.arange(50_000, dtype=np.float32))


def test_an_idle_pool_does_not_spin(cpu):
    backend = cpu(threads=4)
    x = backend.empty((1 << 18,))
    backend.zero(x)
    time.sleep(0.05)
    before = psutil.Process().cpu_times()
    time.sleep(0.5)
    after = psutil.Process().cpu_times()
    assert after.user + after.system - before.user - before.system < 0.2


def test_default_is_the_physical_cores(monkeypatch, tmp_path):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3", "4"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(threads.platform, "system", lambda: "Linux")
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4}, raising=False)
    assert threads.physical_cores() == 3
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    assert threads.physical_cores() == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    assert threads.physical_cores() == 1
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {8, 9}, raising=False)  # nothing known of these
    assert threads.physical_cores() == 2
