"""How an op is compared with its definition: the same calls on a backend and on NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tritune.backends.base import Backend, Buffer

Values = dict[str, NDArray[Any]]
Op = Callable[[Backend], Mapping[str, Buffer]]

# Largest error allowed, relative to the root mean square of the expected values; by how the values were stored.
TOLERANCES = {
    "exact": 0.0,
    "f32": 2e-5,
    "f16": 1e-3,  # half an ulp of an element near the largest
}
# Codes of a rounding: within 1 of the definition's, only where the number lies this near to a tie, in few elements.
NEAR_TIE = 1e-3
MAX_CODES_OFF = 1e-2


class Both:
    """A backend under test, and the definitions."""

    def __init__(self, backend: Backend, reference: Backend) -> None:
        self.backend = backend
        self.reference = reference

    def run(self, op: Op) -> tuple[Values, Values]:
        """(found, expected): the buffers that ``op`` returns, read after it has run on each backend."""

        def values(backend: Backend) -> Values:
            return {name: np.asarray(backend.read(buffer)) for name, buffer in op(backend).items()}

        return values(self.backend), values(self.reference)

    def compare(self, op: Op, kind: str = "f32") -> None:
        """Run ``op`` on both and hold every buffer that it returns to a tolerance of the table."""
        found, expected = self.run(op)
        assert found.keys() == expected.keys()
        for name in expected:
            self.close(found[name], expected[name], kind, name)

    def close(self, found: NDArray[Any], expected: NDArray[Any], kind: str = "f32", name: str = "") -> None:
        """Hold ``found`` to a tolerance of the table."""
        assert found.shape == expected.shape, name
        if TOLERANCES[kind] == 0:
            np.testing.assert_array_equal(found, expected, err_msg=name)
            return
        wanted = expected.astype(np.float64)
        scale = float(np.sqrt(np.mean(np.square(wanted)))) if wanted.size else 0.0
        np.testing.assert_allclose(
            found.astype(np.float64), wanted, rtol=TOLERANCES[kind], atol=TOLERANCES[kind] * scale, err_msg=name
        )

    def codes_close(self, found: NDArray[np.int8], expected: NDArray[np.int8], exact: NDArray[Any]) -> None:
        """Hold int8 codes to the table; ``exact`` is what was rounded."""
        off = found != expected
        assert np.abs(found.astype(int) - expected).max(initial=0) <= 1
        assert np.mean(off) <= MAX_CODES_OFF
        distance = np.abs(np.abs(exact - np.floor(exact)) - 0.5)
        assert distance[off].max(initial=0) <= NEAR_TIE


@pytest.fixture(scope="session")
def plain_webgpu() -> Iterator[Backend]:
    """WebGPU as on a device without subgroups and with small workgroups, where other paths are taken."""
    from tritune.backends.webgpu import WebGPUOptions, list_adapters, open_webgpu

    if not list_adapters():
        pytest.skip("no WebGPU adapter")
    backend = open_webgpu("webgpu", WebGPUOptions(subgroups=False, workgroup_size=32))
    yield backend
    backend.close()


def cpu_variants() -> list[str]:
    """A CPU backend for each instruction set that this machine can run; one that is skipped where there is none."""
    from tritune.backends.cpu import native_problem
    from tritune.backends.cpu.loading import supported_isas

    return ["cpu"] if native_problem() else [f"cpu-{isa}" for isa in supported_isas()]


# Threads of an instruction set's backend; more than processors, and a number that divides nothing, must do too.
CPU_THREADS = {"portable": 1, "avx2": 2, "avxvnni": 5}


@pytest.fixture(params=["numpy", *cpu_variants(), "webgpu", "plain_webgpu"])
def both(request: pytest.FixtureRequest, reference: Backend) -> Both:
    """Each backend in turn, beside the definitions: NumPy in float32, the CPU's kernels for each instruction set,
    WebGPU, WebGPU without subgroups."""
    if request.param.startswith("cpu"):
        isa = request.param.partition("-")[2] or None
        return Both(request.getfixturevalue("cpu")(CPU_THREADS.get(isa or "", 3), isa), reference)
    if request.param == "numpy":
        from tritune.backends.numpy import NumpyBackend

        return Both(NumpyBackend(), reference)
    return Both(request.getfixturevalue(request.param), reference)


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers in every test."""
    return np.random.default_rng(0)
