"""A model is loaded a piece at a time: at the peak hardly more is held than the model itself."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_gguf import make_gguf
from tiny_models import make_hf

CHILD = """
import sys
from pathlib import Path

from tritune.backends.cpu import open_cpu
from tritune.models.bitnet import BitNet
from tritune.models.weights import open_model

def held(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

import gguf.quants  # not a part of the model
backend = open_cpu(1)
before = held("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
model = BitNet(backend, open_model(sys.argv[1]))
print(held("VmHWM") - before)
"""


def peak_of(path: Path) -> int:
    run = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_loading_needs_less_than_a_third_above_the_model(tmp_path: Path, cpu: object, kind: str) -> None:
    sizes = {"hidden": 512, "layers": 4, "heads": 8, "ffn": 1536, "vocab": 24000, "tie": False}
    if kind == "hf":
        make_hf(tmp_path, **sizes)  # type: ignore[arg-type]
        path, file = tmp_path, tmp_path / "model.safetensors"
    else:
        path = file = tmp_path / "m.gguf"
        make_gguf(path, **sizes)  # type: ignore[arg-type]
    assert peak_of(path) < 1.3 * file.stat().st_size
