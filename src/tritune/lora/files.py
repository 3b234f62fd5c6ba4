"""The files of an adapter: which format they have (told by their content, never by their name), reading, writing.

peft    a directory: adapter_config.json with peft_type, adapter_model.safetensors
mlx     a directory: adapter_config.json with fine_tune_type or lora_parameters, adapters.safetensors (mlx-lm)
gguf    a file that begins with "GGUF" (llama.cpp)
hesper  a file that begins with Hesper's magic number
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, get_args

from tritune.atomic import reason
from tritune.errors import AdapterError, ConfigError, ModelFileError
from tritune.formats.fields import read_json_object
from tritune.lora.adapter import Adapter
from tritune.lora.gguf import GgufFile, save_gguf
from tritune.lora.hesper import MAGIC, HesperFile, save_hesper
from tritune.lora.inferred import infer_model
from tritune.lora.mlx import WEIGHTS_NAME, MlxFile, save_mlx
from tritune.lora.peft import PeftFile, save_peft
from tritune.lora.peft_files import CONFIG_NAME, current_weights
from tritune.lora.tensors import AdapterTensors
from tritune.models.config import ModelConfig

Format = Literal["peft", "gguf", "mlx", "hesper"]
FORMATS: tuple[Format, ...] = get_args(Format)


class AdapterFile(Protocol):
    """An opened adapter. Making one and its calls raise AdapterError, ModelFileError or OSError."""

    def __init__(self, path: Path) -> None: ...

    @property
    def tensors(self) -> AdapterTensors:
        """What lies in the file."""
        ...

    def load(self, model: ModelConfig, base_name: str) -> Adapter:
        """The adapter, checked against a model."""
        ...


READERS: Mapping[Format, type[AdapterFile]] = {"peft": PeftFile, "gguf": GgufFile, "mlx": MlxFile, "hesper": HesperFile}
WRITERS = {"peft": save_peft, "gguf": save_gguf, "mlx": save_mlx, "hesper": save_hesper}


def detect_format(path: Path) -> Format:
    """The format of an adapter's directory or file. Raises AdapterError for anything else."""
    try:
        return _detect(path)
    except ModelFileError as error:
        raise AdapterError(str(error)) from None
    except OSError as error:
        raise AdapterError(f"{path}: cannot be read: {reason(error)}") from None


def _detect(path: Path) -> Format:
    if path.is_dir():
        return _detect_directory(path)
    if not path.exists():
        raise AdapterError(f"{path}: expected an adapter's directory with {CONFIG_NAME}, found nothing")
    with path.open("rb") as file:
        start = file.read(9)
    if start.startswith(b"GGUF"):
        return "gguf"
    if start.startswith(MAGIC):
        return "hesper"
    if start.endswith(b"{") and len(start) == 9:
        raise AdapterError(f"{path}: a safetensors file alone; expected the directory that holds it and {CONFIG_NAME}")
    raise AdapterError(
        f"{path}: expected an adapter's directory with {CONFIG_NAME}, a GGUF file or a Hesper file, found a file "
        "that is none of these"
    )


def _detect_directory(path: Path) -> Format:
    config = read_json_object(path / CONFIG_NAME)
    if "peft_type" not in config and ("fine_tune_type" in config or "lora_parameters" in config):
        return "mlx"
    return "peft"


def weights_file(path: Path, kind: Format) -> Path:
    """The file with an adapter's tensors. Raises AdapterError when a directory has none."""
    if kind == "peft":
        return current_weights(path)
    return path / WEIGHTS_NAME if kind == "mlx" else path


def load_adapter(path: Path, model: ModelConfig, base_name: str) -> Adapter:
    """Read an adapter made for ``model``. Raises AdapterError, one line that names the file and the field or tensor.

    Warns when the adapter names a base other than ``base_name``; a name alone says little.
    """
    return _read(path, model, base_name)


def read_adapter(path: Path) -> Adapter:
    """Read an adapter without its model, whose sizes are taken from the tensors: to look at it, not to run or save it.

    Raises AdapterError, also where the file alone does not say enough.
    """
    return _read(path, None, "")


def _read(path: Path, model: ModelConfig | None, base_name: str) -> Adapter:
    kind = detect_format(path)
    try:
        file = READERS[kind](path)
        return file.load(infer_model(file.tensors) if model is None else model, base_name)
    except ModelFileError as error:
        raise AdapterError(str(error)) from None
    except OSError as error:
        raise AdapterError(f"{path}: cannot be read: {reason(error)}") from None


def save_adapter(adapter: Adapter, path: Path, kind: str = "peft") -> None:
    """Write an adapter as float32, whole or not at all.

    Raises AdapterError for what the format cannot hold, ConfigError for an unknown format.
    """
    if kind not in WRITERS:
        raise ConfigError(f"adapter format {kind!r}: expected {', '.join(FORMATS)}")
    WRITERS[kind](adapter, path)
