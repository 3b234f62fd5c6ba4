"""What the package exports is there, documented, and all that a star import gives."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import tritune

PUBLIC = {
    "Adapter", "AdapterError", "Chat", "ConfigError", "ContextLengthError", "DataError", "DenseExport", "DeviceError",
    "DeviceLostError", "Evaluation", "InputError", "LoRAConfig", "Model", "ModelFileError", "OutOfMemoryError",
    "TextStream", "TrainConfig", "TrainingError", "TrituneError", "evaluate", "export_dense", "load", "train",
}  # fmt: skip
ROOMS = [
    "tritune",
    "tritune.data",
    "tritune.evaluation",
    "tritune.generation",
    "tritune.lora",
    "tritune.text",
    "tritune.training",
]
HEAVY = ["torch", "transformers", "peft", "wgpu", "gguf", "huggingface_hub"]


def test_the_public_names_are_these() -> None:
    assert set(tritune.__all__) == PUBLIC


@pytest.mark.parametrize("room", ROOMS)
def test_every_exported_name_is_there_and_documented(room: str) -> None:
    module = importlib.import_module(room)
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        assert not (inspect.isclass(value) or inspect.isroutine(value)) or value.__doc__, name


def test_public_methods_are_documented() -> None:
    for owner in (tritune.Model, tritune.Chat, tritune.TextStream, tritune.Adapter):
        for name, member in vars(owner).items():
            if callable(member) and not name.startswith("_"):
                assert member.__doc__, f"{owner.__name__}.{name}"


def test_importing_the_package_loads_no_driver_and_no_reference_library() -> None:
    code = f"import sys, tritune; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
    assert result.stderr == ""
