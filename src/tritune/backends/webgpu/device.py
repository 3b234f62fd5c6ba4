"""Which GPU: adapters listed and chosen, a device opened with all that its adapter offers, and its errors made ours.

Nothing here runs at import; wgpu itself is imported when a device is first asked for, so that a machine without it
still imports tritune.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tritune.errors import DeviceError, DeviceLostError, OutOfMemoryError

from .tuning_file import load_tuning

KINDS = ("discrete", "integrated", "unknown", "software")
"""Kinds of adapter, best first."""

_KIND_OF_TYPE = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software"}
_SUBGROUPS = {0x10DE: 32, 0x1002: 32, 0x8086: 8}
"""Threads of the smallest subgroup of NVIDIA's, AMD's and Intel's GPUs, which wgpu-native does not tell; elsewhere 4,
which is what WebGPU promises."""
_BACKENDS = ("Vulkan", "Metal", "D3D12", "OpenGL")  # the order in which the same GPU is preferred
_INSTALL_HINT = (
    "no Vulkan driver was found: install your GPU's driver with Vulkan support (for a software one on Debian or "
    "Ubuntu: mesa-vulkan-drivers and libvulkan1), or use --device cpu"
)


@dataclass(frozen=True)
class WebGPUOptions:
    """Settings of a WebGPU device. The defaults are right for use; tests force the paths that other devices take."""

    dynamic_offsets: bool = True  # False: each dispatch has a bind group of its own, also where they could share them
    subgroups: bool = True  # False: the workgroup-memory path, also where the adapter has subgroups
    max_binding_bytes: int | None = None  # at most this much of a buffer is bound at once (the adapter's limit if None)
    memory_limit_bytes: int | None = None  # refuse to allocate more than this
    arena_bytes: int = 128 << 20  # buffers smaller than this are parts of arenas of at most this size
    attention_splits: int | None = None  # over how many workgroups the context of a decoded row is split
    one_row: bool | None = None  # a linear of one row and its neighbours in one dispatch (None: not in software)
    workgroup_size: int | None = None  # threads of a workgroup in reductions over rows; a power of two
    submit_seconds: float | None = None  # longer submits are cut, by estimate (None: 0.5; never for software adapters)


@dataclass(frozen=True)
class Rates:
    """What a device does in a second, for estimates."""

    nbytes: float
    flops: float


_RATES = {"discrete": Rates(100e9, 1e12), "integrated": Rates(20e9, 100e9)}
"""Of slow GPUs of a kind; a submit that is cut once too often costs some microseconds."""


@dataclass(frozen=True)
class AdapterInfo:
    """A GPU (or a software renderer) that WebGPU can open. ``index`` is the n of the device name ``webgpu:n``."""

    index: int
    name: str
    kind: str  # one of KINDS
    backend: str  # Vulkan, Metal, D3D12 or OpenGL
    driver: str
    software: bool
    features: frozenset[str]
    limits: dict[str, int] = field(hash=False)
    vendor_id: int = 0
    device_id: int = 0
    handle: Any = field(default=None, repr=False, compare=False)

    @property
    def description(self) -> str:
        """For people: "NVIDIA H200 (discrete, Vulkan, NVIDIA 550.1)"."""
        parts = ", ".join(part for part in (self.kind, self.backend, self.driver) if part)
        return f"{self.name} ({parts})"

    @property
    def identity(self) -> dict[str, str]:
        """What a device's tuning belongs to."""
        return {"name": self.name, "backend": self.backend, "driver": self.driver}


def list_adapters() -> list[AdapterInfo]:
    """The adapters of this machine, each GPU once, best first. Empty when there is none: see ``adapters_problem``."""
    return _enumerate()[0]


def adapters_problem() -> str | None:
    """Why ``list_adapters`` is empty, in one line; None when it is not."""
    adapters, problem = _enumerate()
    return None if adapters else problem


def choose_adapter(spec: str, adapters: list[AdapterInfo]) -> AdapterInfo:
    """The adapter that ``webgpu``, ``webgpu:<index>`` or ``webgpu:<part of its name>`` means.

    Raises DeviceError when there is none, with what there is or what to install.
    """
    head, _, which = spec.partition(":")
    if head != "webgpu":
        raise DeviceError(f"device {spec!r}: expected webgpu, webgpu:<number> or webgpu:<part of the adapter's name>")
    if not adapters:
        raise DeviceError(f"device {spec!r}: {adapters_problem() or _INSTALL_HINT}")
    if not which:
        return adapters[0]
    found = "; ".join(f"{a.index}: {a.name}" for a in adapters)
    if which.isdecimal():
        if int(which) < len(adapters):
            return adapters[int(which)]
        raise DeviceError(f"device {spec!r}: there is no adapter {which}, found {found}")
    for adapter in adapters:
        if which.lower() in adapter.name.lower():
            return adapter
    raise DeviceError(f"device {spec!r}: no adapter's name contains {which!r}, found {found}")


class Device:
    """An open device: its queue, its limits and facts, and what went wrong on it."""

    def __init__(self, info: AdapterInfo, options: WebGPUOptions) -> None:
        """Open ``info``'s adapter with all of its limits and the features that tritune uses.

        Raises DeviceError when the driver refuses.
        """
        from wgpu.backends.wgpu_native._api import error_handler

        self.info = info
        self.options = options
        self.handler: Any = error_handler  # of all devices
        self.lost: str | None = None  # why, once the device has gone away
        self._completed = -1  # the last submission that was waited for
        self._problems = _Problems()
        wanted = [name for name in ("subgroup", "timestamp-query") if name in info.features]
        with self.errors("opening the device"):
            try:
                self.handle: Any = info.handle.request_device_sync(required_features=wanted)
            except RuntimeError as error:
                raise DeviceError(f"{info.name}: the driver refused to open the device: {one_line(error)}") from error
        self.queue: Any = self.handle.queue
        self.subgroups = options.subgroups and "subgroup" in info.features
        self.smallest_subgroup = _SUBGROUPS.get(info.vendor_id, 4)
        self.max_binding = info.limits["max-storage-buffer-binding-size"]
        if options.max_binding_bytes is not None:
            self.max_binding = min(self.max_binding, options.max_binding_bytes)
        self.max_binding &= ~3
        # WebGPU promises 8 storage buffers; more are for what is quicker with more, which software is not.
        self.max_bindings = 8 if info.software else min(16, info.limits["max-storage-buffers-per-shader-stage"])
        self.max_buffer = info.limits["max-buffer-size"] & ~3
        self.max_grid = info.limits["max-compute-workgroups-per-dimension"]
        self.alignment = max(info.limits["min-storage-buffer-offset-alignment"], 4)
        limits = (info.limits["max-compute-invocations-per-workgroup"], info.limits["max-compute-workgroup-size-x"])
        self.max_threads = min(limits)
        # A barrier of a software renderer costs by the thread, so its workgroups are small.
        self.workgroup_size = min(options.workgroup_size or (64 if info.software else 256), self.max_threads)
        if self.workgroup_size < 1 or self.workgroup_size & (self.workgroup_size - 1):
            raise DeviceError(f"workgroup_size must be a power of two, found {self.workgroup_size}")

        tuning = load_tuning(info.identity)
        if tuning.problem is not None:
            warnings.warn(tuning.problem, stacklevel=2)
        self.choices = tuning.choices
        """How work is cut, where that is not by default: see choices.py."""
        self.rates = _RATES.get(info.kind, _RATES["integrated"])
        # A software renderer cannot hang a screen, and its rates are anybody's guess.
        self.submit_seconds = options.submit_seconds or (float("inf") if info.software else 0.5)

    def team(self, threads: int) -> int:
        """How many threads next to each other are surely in one subgroup, of a workgroup of ``threads``; 0: none."""
        team = self.smallest_subgroup if self.subgroups else 0
        return team if team and threads % team == 0 else 0

    def errors(self, what: str) -> _Errors:
        """Run a block of wgpu calls; whatever goes wrong in it, if only reported, is raised as our error."""
        return _Errors(self, what)

    def check(self, what: str) -> None:
        """Raise DeviceLostError if the device has gone away."""
        if not self._problems.messages and self.lost is None:
            return
        for message in self._problems.messages:
            # A device that was closed, this one or another, is no loss.
            if "device was lost" in message and "destroyed" not in message.lower():
                self.lost = self.lost or one_line(message)
        self._problems.messages.clear()
        if self.lost is not None:
            raise DeviceLostError(f"{self.info.name}: the device was lost ({what}): {self.lost}")

    def error(self, is_memory: bool, what: str, message: str) -> DeviceError:
        """Ours for one of wgpu's."""
        if "device is lost" in message.lower() or "device lost" in message.lower():
            self.lost = one_line(message)
            return DeviceLostError(f"{self.info.name}: the device was lost ({what}): {self.lost}")
        kind = OutOfMemoryError if is_memory or "not enough memory" in message.lower() else DeviceError
        return kind(f"{self.info.name}: {what}: {one_line(message)}")

    def wait(self) -> None:
        """Wait until everything that was submitted has finished."""
        with self.errors("waiting for the device"):
            self.poll()

    def wait_for(self, submission: int) -> None:
        """Wait until a submission has finished, if it has not; later ones go on."""
        if submission > self._completed:
            self.poll(submission)

    def poll(self, submission: int | None = None) -> None:
        """Wait for a submission (None: everything), and call back whoever waits for something that has happened."""
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        raw: Any = lib
        cffi: Any = ffi
        which: Any = cffi.NULL if submission is None else cffi.new("WGPUSubmissionIndex *", submission)
        raw.wgpuDevicePoll(self.handle._internal, True, which)
        self._completed = max(self._completed, -1 if submission is None else submission)

    def close(self) -> None:
        """Give the device back to the driver. Its buffers must have been destroyed before."""
        self.handle.destroy()
        self._problems.remove()


class _Errors:
    """See Device.errors. A class, since a step of decoding has no time for a generator."""

    def __init__(self, device: Device, what: str) -> None:
        self._device = device
        self._what = what

    def __enter__(self) -> None:
        self._device.check(self._what)
        self._device.handler.capture("tritune")  # errors of raw calls, which wgpu-py would only log

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        late: tuple[str, str] | None = self._device.handler.release("tritune")
        if error is None and late is None:
            self._device.check(self._what)
            return
        import wgpu

        if isinstance(error, wgpu.GPUError):
            is_memory = isinstance(error, wgpu.classes.GPUOutOfMemoryError)
            raise self._device.error(is_memory, self._what, str(error)) from error
        if error is None and late is not None:
            raise self._device.error(late[0] == "OutOfMemory", self._what, late[1])


class _Problems(logging.Handler):
    """Collects what wgpu can only log, because it comes between calls: a lost device."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        logging.getLogger("wgpu").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def remove(self) -> None:
        logging.getLogger("wgpu").removeHandler(self)


def one_line(error: object) -> str:
    """The lines of a message of wgpu that carry the cause, joined to one."""
    lines = [line.strip(" \n\r\t*-─│┌") for line in str(error).splitlines()]
    return " · ".join([line for line in lines if line and line not in ("Caused by:", "Validation Error")][:12])


def _enumerate() -> tuple[list[AdapterInfo], str]:
    """All adapters, each GPU once and best first, or the reason why there are none."""
    try:
        import wgpu

        with _quiet_wayland():
            handles: list[Any] = list(wgpu.gpu.enumerate_adapters_sync())
    except ImportError as error:
        return [], f"the package wgpu cannot be imported ({error}); pip install wgpu"
    except (RuntimeError, OSError) as error:
        return [], f"wgpu could not list the adapters: {one_line(error)}"
    infos = [_describe(handle) for handle in handles]
    unique = _each_gpu_once([info for info in infos if info.backend in _BACKENDS])
    unique.sort(key=lambda info: KINDS.index(info.kind))  # a stable sort: the driver's order within a kind
    return [replace(info, index=index) for index, info in enumerate(unique)], _INSTALL_HINT


@contextmanager
def _quiet_wayland() -> Generator[None]:
    """Without XDG_RUNTIME_DIR, as over ssh, libwayland prints an error of its own each time that OpenGL is tried.

    Any folder silences it; there is no display there, and none is needed.
    """
    if "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ["XDG_RUNTIME_DIR"]


def _describe(handle: Any) -> AdapterInfo:
    info: dict[str, Any] = dict(handle.info)
    kind = _KIND_OF_TYPE.get(str(info.get("adapter_type")), "unknown")
    return AdapterInfo(
        index=-1,
        name=str(info.get("device") or info.get("vendor") or "unnamed adapter"),
        kind=kind,
        backend=str(info.get("backend_type")),
        driver=str(info.get("description") or ""),
        software=kind == "software",
        features=frozenset(str(name) for name in handle.features),
        limits={str(key): int(value) for key, value in dict(handle.limits).items()},
        vendor_id=int(info.get("vendor_id") or 0),
        device_id=int(info.get("device_id") or 0),
        handle=handle,
    )


def _each_gpu_once(infos: list[AdapterInfo]) -> list[AdapterInfo]:
    """Drop an adapter that a better backend lists too. Two GPUs of one kind in the same backend are two."""
    kept: list[AdapterInfo] = []
    for backend in _BACKENDS:
        better = list(kept)
        kept += [a for a in infos if a.backend == backend and not any(_same_gpu(a, b) for b in better)]
    return kept


def _same_gpu(a: AdapterInfo, b: AdapterInfo) -> bool:
    if a.software and b.software:
        return True
    if a.device_id and (a.vendor_id, a.device_id) == (b.vendor_id, b.device_id):
        return True
    return a.name.startswith(b.name) or b.name.startswith(a.name)  # OpenGL adds "/PCIe/SSE2" and knows no ids
