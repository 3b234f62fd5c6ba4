"""Shader modules of WGSL that need no checks at run time.

wgpu puts checks into every shader: it clamps each index into an array in workgroup memory and counts the rounds of each
loop, so that foreign code can do no harm. The kernels here are our own, their indices are in bounds and their loops
end. What is read from and written to device memory stays within the bindings: with Vulkan the driver sees to that
itself, elsewhere the checks stay.
"""

from __future__ import annotations

from typing import Any

NO_CHECKS = 0  # WGPUShaderRuntimeChecks_None


def create_module(device: Any, backend: str, label: str, code: str) -> Any:
    """The wgpu shader module of ``code``, without checks where the driver makes those that count."""
    if backend != "Vulkan":
        return device.create_shader_module(label=label, code=code)
    from wgpu.backends.wgpu_native._api import GPUShaderModule, libf
    from wgpu.backends.wgpu_native._ffi import ffi, lib

    raw: Any = lib
    cffi: Any = ffi
    checked: Any = libf  # raises what goes wrong
    texts = [cffi.new("char[]", text.encode()) for text in (code, label)]
    views = [{"data": text, "length": len(text) - 1} for text in texts]
    source = cffi.new("WGPUShaderSourceWGSL *", {"code": views[0]})
    source.chain.sType = raw.WGPUSType_ShaderSourceWGSL
    chain = cffi.cast("WGPUChainedStruct *", source)
    descriptor = cffi.new("WGPUShaderModuleDescriptor *", {"nextInChain": chain, "label": views[1]})
    module = checked.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, NO_CHECKS)
    return GPUShaderModule(label, module, device)
