"""How the backend is opened, and what is said where it cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.cpu import loading, native_problem, open_cpu
from tritune.errors import ConfigError, DeviceError


@pytest.fixture
def supported(cpu):
    return loading.supported_isas()


def test_the_best_instruction_set_is_taken(supported, monkeypatch):
    monkeypatch.delenv("TRITUNE_CPU_ISA", raising=False)
    backend = open_cpu(threads=1)
    assert supported[-1] == "portable"
    assert (backend.name, backend.isa, backend.description) == ("cpu", supported[0], f"CPU ({supported[0]}, 1 thread)")
    backend.close()


def test_environment_and_argument_name_another(supported, monkeypatch):
    monkeypatch.setenv("TRITUNE_CPU_ISA", "portable")
    assert open_cpu(threads=2).description == "CPU (portable, 2 threads)"
    assert open_cpu(threads=1, isa=supported[0]).isa == supported[0]
    monkeypatch.setenv("TRITUNE_CPU_ISA", "sse9")
    with pytest.raises(ConfigError, match=r"TRITUNE_CPU_ISA: expected one of .*portable.* found 'sse9'"):
        open_cpu(threads=1)


@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_impossible_numbers_of_threads_are_refused(supported, count):
    with pytest.raises(ConfigError, match=f"threads: expected a number from 1 to 1024, found {count}"):
        open_cpu(threads=count)


def test_a_closed_backend_says_so(supported):
    backend = open_cpu(threads=2)
    x = backend.upload(np.ones(4))
    with backend.record() as program:
        backend.zero(x)
    backend.close()
    backend.close()
    for call in (lambda: backend.zero(x), program.run, lambda: backend.empty((4,)), backend.synchronize):
        with pytest.raises(DeviceError, match="closed"):
            call()


def test_without_the_extension_it_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(loading, "import_module", missing)
    loading._import_native.cache_clear()
    try:
        assert "install a C++20 compiler" in (native_problem() or "")
        with pytest.raises(DeviceError, match="native CPU kernels are missing"):
            open_cpu()
    finally:
        loading._import_native.cache_clear()
