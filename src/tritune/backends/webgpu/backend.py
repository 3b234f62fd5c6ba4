"""The WebGPU backend: the core and all ops, and how it is opened."""

from __future__ import annotations

from .core import WebGPUCore
from .device import WebGPUOptions, choose_adapter, list_adapters
from .ops_attention import AttentionOps
from .ops_head import HeadOps
from .ops_linear import LinearOps
from .ops_optimizer import OptimizerOps
from .ops_rows import RowOps
from .work import noted_ops


@noted_ops
class WebGPUBackend(LinearOps, RowOps, AttentionOps, HeadOps, OptimizerOps, WebGPUCore):
    """All ops on a GPU through WebGPU (Vulkan, Metal or Direct3D 12)."""


def open_webgpu(spec: str = "webgpu", options: WebGPUOptions | None = None) -> WebGPUBackend:
    """Open ``webgpu`` (the best adapter), ``webgpu:<index>`` or ``webgpu:<part of the adapter's name>``.

    Raises DeviceError when there is no such adapter, with what there is, or what to install.
    """
    return WebGPUBackend(choose_adapter(spec, list_adapters()), options)
