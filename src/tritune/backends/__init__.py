"""HOW ops are computed, on a device. ``open_backend`` chooses one."""

from __future__ import annotations

from tritune.backends.base import Backend
from tritune.errors import ConfigError


def open_backend(device: str = "auto") -> Backend:
    """The backend for a device.

    ``auto``: the best hardware GPU, otherwise the CPU (a software Vulkan driver is never picked).
    ``webgpu``, ``webgpu:1``, ``webgpu:<part of the adapter's name>``: WebGPU. ``cpu``, ``numpy``: NumPy.
    Raises ConfigError for another name, DeviceError where the device is not there.
    """
    from tritune.backends.numpy import NumpyBackend

    if device in ("cpu", "numpy"):
        return NumpyBackend()
    if device == "webgpu" or device.startswith("webgpu:"):
        from tritune.backends.webgpu import open_webgpu

        return open_webgpu(device)
    if device == "auto":
        from tritune.backends.webgpu import list_adapters, open_webgpu

        if any(not adapter.software for adapter in list_adapters()):
            return open_webgpu("webgpu")
        return NumpyBackend()
    raise ConfigError(f"device {device!r}: expected auto, cpu, numpy, webgpu, webgpu:<number> or webgpu:<name>")
