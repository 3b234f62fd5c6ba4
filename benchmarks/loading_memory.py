"""How much memory loading a model takes: peak resident memory above the interpreter, beside the size of its file.

A packed safetensors file of the 2B-4T's shape is written (random weights, 1.2 GB), and loaded by a child process. One
CSV line: file size, peak while loading, resident afterwards (all GiB), peak / file, seconds, device.

python benchmarks/loading_memory.py [--head int8] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from memory import GIB, Peak
from numpy.typing import NDArray
from random_model import SHAPE_2B4T

from tritune.models.config import ModelConfig
from tritune.models.dense import shape_config
from tritune.models.names import HF_EMBEDDING, HF_FINAL_NORM, HF_NORMS, HF_PROJECTIONS, hf_layer
from tritune.models.weights import norm_sizes, open_model, projection_shapes

# name, dtype as safetensors has it, shape, and a function that makes the values
Entry = tuple[str, str, tuple[int, ...], str]


def write_model(directory: Path, config: ModelConfig) -> None:
    """A model directory of random weights: ternary codes 0, 1 and 2 in packed bytes, norms of 1, a bf16 embedding."""
    entries = list(_entries(config))
    header: dict[str, Any] = {}
    end = 0
    sizes = {"U8": 1, "BF16": 2, "F32": 4}
    for name, dtype, shape, _ in entries:
        start, end = end, end + int(np.prod(shape)) * sizes[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, shape, kind in entries:
            for rows in range(0, shape[0], 4096):
                part = (min(4096, shape[0] - rows), *shape[1:])
                file.write(_values(rng, part, kind).tobytes())
    (directory / "config.json").write_text(json.dumps(_config(config)))


def _entries(config: ModelConfig) -> Iterator[Entry]:
    yield HF_EMBEDDING, "BF16", (config.vocab_size, config.hidden_size), "table"
    yield HF_FINAL_NORM, "F32", (config.hidden_size,), "ones"
    for layer in range(config.num_layers):
        for norm, size in norm_sizes(config).items():
            yield hf_layer(layer, HF_NORMS[norm]) + ".weight", "F32", (size,), "ones"
        for projection, (rows, columns) in projection_shapes(config).items():
            name = hf_layer(layer, HF_PROJECTIONS[projection]) + ".weight"
            yield name, "U8", (rows // 4, columns), "codes"
            yield name + "_scale", "F32", (1,), "ones"


def _values(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> NDArray[Any]:
    if kind == "ones":
        return np.ones(shape, np.float32)
    if kind == "table":
        return (rng.standard_normal(shape, np.float32) * np.float32(0.02)).view(np.uint32).__rshift__(16).astype("<u2")
    digits = [rng.integers(0, 3, shape, np.uint8) << np.uint8(2 * place) for place in range(4)]
    return digits[0] | digits[1] | digits[2] | digits[3]


def _config(config: ModelConfig) -> dict[str, Any]:
    return {
        "model_type": config.model_type,
        **shape_config(config),
        "tie_word_embeddings": config.tie_word_embeddings,
        "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"},
    }


def load(directory: Path, threads: int | None, head: Any) -> None:
    """Load on the CPU in this process and print the line. Without a tokenizer, which the file has none of."""
    from tritune.backends.cpu import open_cpu
    from tritune.models.bitnet import BitNet

    backend = open_cpu(threads)
    size = (directory / "model.safetensors").stat().st_size / GIB
    peak = Peak()
    peak.reset()
    start = time.perf_counter()
    model = BitNet(backend, open_model(directory), head=head)
    seconds = time.perf_counter() - start
    found, after = peak.gib(), peak.now_gib()
    print(f"{size:.3f},{found:.3f},{after:.3f},{found / size:.3f},{seconds:.1f},{model.backend.description!r}")


def main() -> None:
    """Write the model, and load it in a child, whose peak is nobody else's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--head", choices=["stored", "int8"], default="stored")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load is not None:
        load(options.load, options.threads, options.head)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), SHAPE_2B4T)
        print("file GiB,peak GiB,afterwards GiB,peak / file,seconds,device", flush=True)
        threads = [] if options.threads is None else ["--threads", str(options.threads)]
        subprocess.run([sys.executable, __file__, "--load", folder, "--head", options.head, *threads], check=True)


if __name__ == "__main__":
    main()
