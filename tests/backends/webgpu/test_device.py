"""Which adapter a device name means, and what is said when there is none."""

from __future__ import annotations

import pytest

from tritune.backends.webgpu import WebGPUOptions, adapters_problem, list_adapters, open_webgpu
from tritune.backends.webgpu import device as device_module
from tritune.backends.webgpu.device import AdapterInfo, choose_adapter
from tritune.errors import DeviceError


class FakeHandle:
    """What wgpu lists: an adapter with its facts."""

    def __init__(self, name, kind, backend="Vulkan", ids=(0, 0)):
        vendor, number = ids
        self.info = {
            "device": name,
            "adapter_type": kind,
            "backend_type": backend,
            "description": "driver 1",
            "vendor_id": vendor,
            "device_id": number,
        }
        self.features = {"subgroup"}
        self.limits = {"max-buffer-size": 1}


def listed(monkeypatch, *handles):
    wgpu = pytest.importorskip("wgpu")
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: list(handles))
    return list_adapters()


CPU = FakeHandle("llvmpipe", "CPU")
INTEGRATED = FakeHandle("Intel Iris", "IntegratedGPU", ids=(0x8086, 7))
DISCRETE = FakeHandle("NVIDIA H200", "DiscreteGPU", ids=(0x10DE, 9))


def test_best_first_and_numbered(monkeypatch):
    adapters = listed(monkeypatch, CPU, INTEGRATED, FakeHandle("virtio", "Unknown"), DISCRETE)
    assert [a.name for a in adapters] == ["NVIDIA H200", "Intel Iris", "virtio", "llvmpipe"]
    assert [a.index for a in adapters] == [0, 1, 2, 3]
    assert [a.software for a in adapters] == [False, False, False, True]
    assert "discrete" in adapters[0].description and "driver 1" in adapters[0].description


def test_each_gpu_once_through_its_best_backend(monkeypatch):
    adapters = listed(
        monkeypatch,
        FakeHandle("NVIDIA H200/PCIe/SSE2", "DiscreteGPU", "OpenGL"),
        FakeHandle("NVIDIA H200 ", "DiscreteGPU", "D3D12", (0x10DE, 9)),
        DISCRETE,
        FakeHandle("llvmpipe", "CPU", "OpenGL"),
        CPU,
        FakeHandle("old GPU", "DiscreteGPU", "OpenGL"),
    )
    assert [(a.name, a.backend) for a in adapters] == [
        ("NVIDIA H200", "Vulkan"),
        ("old GPU", "OpenGL"),
        ("llvmpipe", "Vulkan"),
    ]


def test_two_gpus_of_one_kind_are_two(monkeypatch):
    assert len(listed(monkeypatch, DISCRETE, DISCRETE)) == 2


def test_choice_by_nothing_number_and_name(monkeypatch):
    adapters = listed(monkeypatch, CPU, INTEGRATED, DISCRETE)
    assert choose_adapter("webgpu", adapters).name == "NVIDIA H200"
    assert choose_adapter("webgpu:1", adapters).name == "Intel Iris"
    assert choose_adapter("webgpu:LLVM", adapters).name == "llvmpipe"
    assert choose_adapter("webgpu:2", adapters).name == "llvmpipe"


def test_software_only_when_there_is_nothing_better(monkeypatch):
    assert choose_adapter("webgpu", listed(monkeypatch, CPU)).software


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("webgpu:3", ["webgpu:3", "no adapter 3", "0: NVIDIA H200", "2: llvmpipe"]),
        ("webgpu:radeon", ["radeon", "1: Intel Iris"]),
        ("cuda", ["cuda", "expected webgpu"]),
        ("webgpu2", ["webgpu2", "expected webgpu"]),
    ],
)
def test_a_wrong_choice_names_what_there_is(monkeypatch, spec, words):
    adapters = listed(monkeypatch, CPU, INTEGRATED, DISCRETE)
    with pytest.raises(DeviceError) as error:
        choose_adapter(spec, adapters)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_no_driver_says_what_to_install(monkeypatch):
    assert listed(monkeypatch) == []
    assert "mesa-vulkan-drivers" in str(adapters_problem())
    with pytest.raises(DeviceError, match=r"no Vulkan driver.*mesa-vulkan-drivers"):
        open_webgpu("webgpu")


def test_no_wgpu_is_no_adapter(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wgpu", None)
    assert list_adapters() == []
    assert "pip install wgpu" in str(adapters_problem())
    with pytest.raises(DeviceError, match="pip install wgpu"):
        open_webgpu("webgpu")


def test_a_driver_that_refuses(monkeypatch):
    class Refusing(FakeHandle):
        def request_device_sync(self, **_):
            raise RuntimeError("Request device failed (2): not today")

    adapters = listed(monkeypatch, Refusing("broken", "DiscreteGPU"))
    with pytest.raises(DeviceError, match=r"broken: the driver refused.*not today"):
        device_module.Device(adapters[0], WebGPUOptions())


def test_all_limits_are_asked_for(webgpu):
    info: AdapterInfo = webgpu.device.info
    granted = dict(webgpu.device.handle.limits)
    for name in ("max-buffer-size", "max-storage-buffer-binding-size", "max-compute-invocations-per-workgroup"):
        assert granted[name] == info.limits[name]


def test_workgroup_size_must_be_a_power_of_two(webgpu):
    with pytest.raises(DeviceError, match="power of two, found 48"):
        device_module.Device(webgpu.device.info, WebGPUOptions(workgroup_size=48))
