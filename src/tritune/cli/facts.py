"""What ``tritune info`` tells, as plain values; nothing is loaded onto a device."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tritune.assets import BUILTIN_MODEL
from tritune.backends.cpu import native_problem
from tritune.backends.cpu.loading import supported_isas
from tritune.backends.cpu.threads import physical_cores
from tritune.backends.webgpu import list_adapters
from tritune.backends.webgpu.device import AdapterInfo, adapters_problem
from tritune.backends.webgpu.tuning_file import load_tuning
from tritune.models.config import ModelConfig
from tritune.models.footprint import footprint
from tritune.models.weights import ModelSource, norm_sizes, open_model, projection_shapes
from tritune.text import ChatTemplate, Tokenizer

BUILT_IN = "built-in"


@dataclass(frozen=True)
class OpenedModel:
    """A model's files, opened; it stands for the model where an adapter is checked against it."""

    source: ModelSource
    path: Path

    @property
    def config(self) -> ModelConfig:
        """Sizes and numbers."""
        return self.source.config

    @property
    def name(self) -> str:
        """The model's name or id."""
        return self.source.config.name


def opened_model(path_or_id: str, *, progress: bool) -> OpenedModel:
    """Open a model's files. Raises ModelFileError."""
    wanted = BUILTIN_MODEL if path_or_id == BUILT_IN and not Path(path_or_id).exists() else path_or_id
    source = open_model(wanted, progress=progress)
    return OpenedModel(source, source.directory or Path(wanted).expanduser())


def device_facts() -> dict[str, Any]:
    """The WebGPU adapters, and which device ``auto`` takes and why."""
    adapters = list_adapters()
    hardware = [adapter for adapter in adapters if not adapter.software]
    cpu = _cpu()
    on_cpu = "numpy" if cpu["problem"] else "cpu"
    if hardware:
        auto, why = f"webgpu:{hardware[0].index}", f"the best hardware GPU, {hardware[0].name}"
    elif adapters:
        auto, why = on_cpu, f"{adapters[0].name} is a software driver, slower than the same CPU without it"
    else:
        auto, why = on_cpu, f"there is no GPU for WebGPU ({adapters_problem()})"
    return {"adapters": [_device(adapter) for adapter in adapters], "cpu": cpu, "auto": auto, "why": why}


def _cpu() -> dict[str, Any]:
    """The native kernels: what is missing (None: nothing), instruction sets, best first, and default threads."""
    problem = native_problem()
    isas = [] if problem else supported_isas()
    return {"problem": problem, "instruction_sets": isas, "threads": physical_cores()}


def _device(adapter: AdapterInfo) -> dict[str, Any]:
    tuning = load_tuning(adapter.identity)
    return {
        "device": f"webgpu:{adapter.index}",
        "name": adapter.name,
        "kind": adapter.kind,
        "backend": adapter.backend,
        "driver": adapter.driver,
        "software": adapter.software,
        "max_buffer_bytes": adapter.limits["max-buffer-size"],
        "max_binding_bytes": adapter.limits["max-storage-buffer-binding-size"],
        "subgroups": "subgroup" in adapter.features,
        "f16": "shader-f16" in adapter.features,
        "tuning": None if tuning.path is None else str(tuning.path),
        "tuning_problem": tuning.problem,
    }


def model_facts(model: OpenedModel, chat_template: str | None = None) -> dict[str, Any]:
    """Sizes, template and end tokens of a model. Raises ModelFileError, ConfigError."""
    source, config = model.source, model.source.config
    if source.directory is not None:
        tokenizer = Tokenizer.from_directory(source.directory)
    else:
        tokenizer = Tokenizer.from_gguf(source.gguf_metadata or {}, config.name)
    template = ChatTemplate.resolve(tokenizer, chat_template, config.model_type)
    ends = source.generation.eos_token_ids or tokenizer.end_ids
    own = source.generation
    return {
        "name": config.name,
        "path": str(model.path),
        "file_bytes": _file_bytes(model.path),
        "needs": str(footprint(source, config.max_positions)) + f" of {config.max_positions:,} positions",
        "model_type": config.model_type,
        "ternary_parameters": config.num_layers * sum(map(prod, projection_shapes(config).values())),
        "other_parameters": _other_parameters(source),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "activation": config.activation,
        "vocab_size": config.vocab_size,
        "context": config.max_positions,
        "rope_theta": config.rope_theta,
        "chat_template": template.name,
        "end_tokens": {str(token): tokenizer.id_to_token(token) for token in ends},
        "sampling": {
            name: value
            for name in ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")
            if (value := getattr(own, name)) is not None
        },
    }


def _other_parameters(source: ModelSource) -> int:
    """Embedding, head if it is one of its own, and norms."""
    config = source.config
    tables = 1 if source.head() is None else 2
    norms = config.num_layers * sum(norm_sizes(config).values()) + config.hidden_size
    return tables * config.vocab_size * config.hidden_size + norms


def _file_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
