"""Which backend a device's name opens."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tritune.backends.cpu
from tritune.backends import open_backend, webgpu
from tritune.backends.webgpu.device import AdapterInfo
from tritune.errors import ConfigError

SOFTWARE = AdapterInfo(
    index=0, name="llvmpipe", kind="software", backend="Vulkan", driver="Mesa", software=True, features=frozenset(),
    limits={},
)  # fmt: skip


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[AdapterInfo]:
    """The adapters of this machine, to be filled in; opening one gives its name."""
    listed: list[AdapterInfo] = [SOFTWARE]
    monkeypatch.setattr(webgpu, "list_adapters", lambda: listed)
    monkeypatch.setattr(webgpu, "open_webgpu", lambda spec: f"opened {spec}")
    return listed


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_the_native_kernels_are_taken_where_they_are(gpus, cpu, device) -> None:
    backend = open_backend(device, threads=3)
    assert (backend.name, backend.threads) == ("cpu", 3)  # type: ignore[attr-defined]
    backend.close()


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_numpy_takes_their_place(gpus, monkeypatch, device) -> None:
    monkeypatch.setattr(tritune.backends.cpu, "native_problem", lambda: "not built")
    assert open_backend(device).name == "numpy"
    assert open_backend(device, threads=2).name == "numpy"


def test_auto_takes_a_hardware_gpu(gpus) -> None:
    gpus.append(replace(SOFTWARE, name="Big GPU", software=False))
    assert open_backend("auto", threads=2) == "opened webgpu"
    assert open_backend("webgpu:1") == "opened webgpu:1"


@pytest.mark.parametrize("device", ["numpy", "webgpu", "webgpu:0"])
def test_threads_of_another_device_are_refused(gpus, device) -> None:
    with pytest.raises(ConfigError, match=f"threads 2: the device {device} takes none"):
        open_backend(device, threads=2)


@pytest.mark.parametrize("device", ["", "gpu", "webgpux", "cuda:0"])
def test_other_names_are_refused(gpus, device) -> None:
    with pytest.raises(ConfigError, match="expected auto, cpu, numpy"):
        open_backend(device)
