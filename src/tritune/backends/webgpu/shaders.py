"""WGSL files rendered with Jinja2, and the pipelines made of them, each once.

A kernel file sees, besides its ``variant``: ``subgroup`` (bool), ``workgroup_size``, ``software``, ``limits`` and the
function ``binding(name, type)``, which declares the next storage buffer. prelude.wgsl holds the shared macros.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from tritune.backends.base import Stats
from tritune.errors import DeviceError

from .device import Device
from .modules import create_module

KERNELS = Path(__file__).parent / "kernels"


class Shaders:
    """Renders kernels and keeps their pipelines; one bind group layout for each number of storage buffers."""

    def __init__(self, device: Device, stats: Stats) -> None:
        self._device = device
        self._stats = stats
        self._environment = Environment(
            loader=FileSystemLoader(KERNELS),
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._sources: dict[tuple[str, tuple[tuple[str, object], ...]], tuple[str, int]] = {}
        self._pipelines: dict[tuple[str, int], Any] = {}
        self._layouts: dict[int, tuple[Any, Any]] = {}

    def pipeline(self, kernel: str, variant: Mapping[str, object], num_buffers: int) -> Any:
        """The compute pipeline of a kernel's variant. Raises DeviceError when it does not compile or bind as called."""
        key = (kernel, tuple(sorted(variant.items())))
        if key not in self._sources:
            self._sources[key] = self.render(kernel, variant)
        source, declared = self._sources[key]
        if declared != num_buffers:
            raise DeviceError(f"kernel {kernel} {dict(variant)} declares {declared} buffers, {num_buffers} were given")
        if (source, num_buffers) not in self._pipelines:
            self._pipelines[source, num_buffers] = self._compile(kernel, variant, source, num_buffers)
        return self._pipelines[source, num_buffers]

    def render(self, kernel: str, variant: Mapping[str, object]) -> tuple[str, int]:
        """The WGSL of a kernel's variant, and how many storage buffers it declares."""
        bindings = _Bindings()
        facts: dict[str, object] = {
            "subgroup": self._device.subgroups,
            "workgroup_size": self._device.workgroup_size,
            "software": self._device.info.software,
            "limits": self._device.info.limits,
            "binding": bindings.declare,
        }
        try:
            text = self._environment.get_template(f"{kernel}.wgsl").render({**facts, **variant})
        except TemplateError as error:
            raise DeviceError(f"kernel {kernel} {dict(variant)} cannot be rendered: {error!r}") from error
        return text, bindings.count

    def dynamic(self, num_buffers: int) -> bool:
        """Whether a dispatch says where its buffers begin, so that others can have the same bind group."""
        most = self._device.info.limits["max-dynamic-storage-buffers-per-pipeline-layout"]
        return self._device.options.dynamic_offsets and num_buffers <= most

    def layout(self, num_buffers: int) -> tuple[Any, Any]:
        """(bind group layout, pipeline layout): the parameters at binding 0, then ``num_buffers`` storage buffers."""
        if num_buffers not in self._layouts:
            entries: list[dict[str, Any]] = [
                {
                    "binding": i,
                    "visibility": "COMPUTE",
                    "buffer": {"type": kind, "has_dynamic_offset": self.dynamic(num_buffers)},
                }
                for i, kind in enumerate(["uniform"] + ["storage"] * num_buffers)
            ]
            with self._device.errors("making a bind group layout"):
                group = self._device.handle.create_bind_group_layout(entries=entries)
                pipeline = self._device.handle.create_pipeline_layout(bind_group_layouts=[group])
            self._stats.objects += 2
            self._layouts[num_buffers] = (group, pipeline)
        return self._layouts[num_buffers]

    def _compile(self, kernel: str, variant: Mapping[str, object], source: str, num_buffers: int) -> Any:
        _, layout = self.layout(num_buffers)
        with self._device.errors(f"compiling kernel {kernel} {dict(variant)}"):
            module = create_module(self._device.handle, self._device.info.backend, kernel, source)
            pipeline = self._device.handle.create_compute_pipeline(
                label=kernel, layout=layout, compute={"module": module, "entry_point": "main"}
            )
        self._stats.objects += 2
        return pipeline


class _Bindings:
    """Numbers the storage buffers of one kernel in the order of their declarations."""

    def __init__(self) -> None:
        self.count = 0

    def declare(self, name: str, wgsl_type: str) -> str:
        self.count += 1
        return f"@group(0) @binding({self.count}) var<storage, read_write> {name}: {wgsl_type};"
