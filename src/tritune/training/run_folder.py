"""What a run leaves beside its adapter, so that it can be repeated: config.yaml and environment.json.

``tritune train -c run/config.yaml`` repeats a run; on the same CPU kernels with the same bits.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from tritune.atomic import write_atomic
from tritune.data.files import Data, named_sources
from tritune.lora import Adapter, LoRAConfig
from tritune.model import Model
from tritune.training.config import TrainConfig

CONFIG_NAME = "config.yaml"
ENVIRONMENT_NAME = "environment.json"
START_NAME = "start_adapter"
PACKAGES = ("tritune", "numpy", "wgpu", "tokenizers", "safetensors", "Jinja2")


def write_run_folder(
    folder: Path,
    model: Model,
    data: Data,
    eval_data: Data | None,
    start: Adapter | None,
    lora: LoRAConfig,
    config: TrainConfig,
    *,
    resumed: bool,
) -> None:
    """Write the settings and the environment of a run, and the adapter that it starts from (a resumed run keeps the
    one that is there). Raises InputError."""
    place = folder / START_NAME
    if start is not None and not resumed:
        start.save(place)
    elif not resumed:
        shutil.rmtree(place, ignore_errors=True)
    settings: dict[str, Any] = {name: _plain(value) for name, value in model.loaded_with.items() if value is not None}
    settings |= {"data": names} if (names := _names(data)) else {}
    settings |= {"eval_data": names} if eval_data is not None and (names := _names(eval_data)) else {}
    # An adapter brings its own rank, alpha and so on.
    settings |= {"adapter": _plain(place)} if place.exists() else _without_none(asdict(lora))
    settings |= asdict(config)
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    if "data" not in settings:
        text = "# The rows to train on were given in Python: give them with --data to repeat the run.\n" + text
    write_atomic(folder / CONFIG_NAME, text.encode())
    write_atomic(folder / ENVIRONMENT_NAME, (json.dumps(environment(model), indent=2) + "\n").encode())


def environment(model: Model) -> dict[str, Any]:
    """Versions and device of this run."""
    return {
        "command": sys.argv,
        "device": model.backend.description,
        "backend": model.backend.name,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _plain(value: object) -> object:
    """A path as text that means the same from any folder; other values as they are."""
    path = Path(value).expanduser() if isinstance(value, (str, Path)) else None
    return str(path.resolve()) if path is not None and path.exists() else str(value) if path is not None else value


def _names(data: Data) -> str | list[str]:
    """What ``data`` names, as --data takes it; empty for rows."""
    named = [(str(_plain(name)), weight) for name, weight in named_sources(data) or ()]
    texts = [name if weight is None else f"{name}={weight:g}" for name, weight in named]
    return texts[0] if len(texts) == 1 else texts


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
