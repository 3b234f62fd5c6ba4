"""The WebGPU backend: any GPU with Vulkan, Metal or Direct3D 12, through wgpu."""

from __future__ import annotations

from .backend import WebGPUBackend, open_webgpu
from .device import AdapterInfo, WebGPUOptions, adapters_problem, list_adapters

__all__ = ["AdapterInfo", "WebGPUBackend", "WebGPUOptions", "adapters_problem", "list_adapters", "open_webgpu"]
