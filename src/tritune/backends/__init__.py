"""HOW ops are computed, on a device. ``open_backend`` chooses one."""

from __future__ import annotations

from tritune.backends.base import Backend
from tritune.errors import ConfigError


def open_backend(device: str = "auto", threads: int | None = None) -> Backend:
    """The backend for a device.

    ``auto``: the best hardware GPU, otherwise the CPU (a software Vulkan driver is never picked).
    ``webgpu``, ``webgpu:1``, ``webgpu:<part of the adapter's name>``: WebGPU. ``cpu``: the native kernels, or NumPy
    where they were not built (``tritune.backends.cpu.native_problem`` says why). ``numpy``: the definitions, run as
    they are.
    threads: how many compute on the CPU (default: its physical cores); NumPy's products have their own.
    Raises ConfigError for another name, or for threads of another device; DeviceError where the device is not there.
    """
    if device == "auto":
        from tritune.backends.webgpu import list_adapters, open_webgpu

        if any(not adapter.software for adapter in list_adapters()):
            return open_webgpu("webgpu")
        return _open_cpu(threads)
    if device == "cpu":
        return _open_cpu(threads)
    if threads is not None:
        raise ConfigError(f"threads {threads}: the device {device} takes none; expected cpu or auto")
    if device == "numpy":
        from tritune.backends.numpy import NumpyBackend

        return NumpyBackend()
    if device == "webgpu" or device.startswith("webgpu:"):
        from tritune.backends.webgpu import open_webgpu

        return open_webgpu(device)
    raise ConfigError(f"device {device!r}: expected auto, cpu, numpy, webgpu, webgpu:<number> or webgpu:<name>")


def _open_cpu(threads: int | None) -> Backend:
    from tritune.backends.cpu import native_problem, open_cpu

    if native_problem() is None:
        return open_cpu(threads)
    from tritune.backends.numpy import NumpyBackend

    return NumpyBackend()
