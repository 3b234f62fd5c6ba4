"""The same model in transformers, with its adapter in peft and its gradients from autograd."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers.integrations.bitnet import ActQuant

from oracles.harness import Example, Floats, Gradients
from tritune.lora import Adapter

Rounding = Callable[[Any, Any], Any]
"""What takes the place of ActQuant.forward: (ctx, activations) -> activations."""

# Which of a block's four quantisations each of its seven linears reads: q, k and v share one, and so do gate and up.
SHARED = (0, 0, 0, 1, 2, 2, 3)


def multiplying_copy(directory: Path, target: Path) -> Path:
    """A `bitlinear` directory as `autobitlinear`, with reciprocal scales.

    peft refuses BitLinear, and autograd does not pass it.
    """
    config = json.loads((directory / "config.json").read_text())
    if config["quantization_config"]["linear_class"] != "bitlinear":
        return directory
    shutil.copytree(directory, target, dirs_exist_ok=True)
    config["quantization_config"]["linear_class"] = "autobitlinear"
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(target / "model.safetensors")
    for name in tensors:
        if name.endswith(".weight_scale"):
            tensors[name] = 1 / tensors[name].float()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def identity(_: Any, activations: Any) -> Any:
    """Rounding off."""
    return activations


def replayed(quantised: Sequence[tuple[NDArray[np.int8], Floats]]) -> Rounding:
    """Codes [T, K] and scales [T] from elsewhere, four a block in the order of its linears."""
    calls = iter(quantised[4 * (i // 7) + SHARED[i % 7]] for i in range(len(quantised) // 4 * 7))

    def forward(_: Any, activations: Any) -> Any:
        codes, scales = next(calls)
        values = torch.tensor(codes.astype(np.float32) / scales.astype(np.float32)[:, None])
        assert values.shape == activations.shape[1:]
        return values[None]

    return forward


@contextmanager
def rounding(forward: Rounding | None) -> Iterator[None]:
    """Replace the reference's rounding of activations (None: leave it on); nothing is compiled meanwhile."""
    original = ActQuant.__dict__["forward"]
    if forward is not None:
        ActQuant.forward = staticmethod(forward)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        ActQuant.forward = original


class Reference:
    """transformers in float32 on the CPU."""

    def __init__(self, directory: Path, attention: str = "eager") -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation=attention
        )
        torch.nn.Module.float(self.model)
        self.model.eval()

    def with_adapter(self, adapter: Adapter, start_layer: int = 0) -> Any:
        """A peft model that holds the adapter, trainable from ``start_layer`` on. The scale is peft's own doing."""
        config = adapter.config
        modules = {target.projection for target in adapter.targets}
        lora = peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=config.rank,
            lora_alpha=config.alpha,  # type: ignore[arg-type]
            target_modules=sorted(modules),
            use_rslora=config.rslora,
            rank_pattern=dict(config.rank_pattern),
            alpha_pattern=dict(config.alpha_pattern),
            layers_to_transform=None if config.layers is None else list(config.layers),
        )
        model = peft.get_peft_model(copy.deepcopy(self.model), lora)
        parameters = trainable(model)
        tensors = adapter.tensors()
        assert parameters.keys() == tensors.keys()
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(tensors[name].copy()))
                parameter.requires_grad_(int(name.split(".layers.")[1].split(".")[0]) >= start_layer)
        return model.eval()

    def logits(self, ids: list[int], adapter: Adapter | None = None, forward: Rounding | None = None) -> Floats:
        """Logits [T, V]."""
        model = self.model if adapter is None else self.with_adapter(adapter)
        with rounding(forward), torch.no_grad():
            return model(input_ids=torch.tensor([ids])).logits[0].numpy()

    def loss_and_gradients(
        self,
        examples: Sequence[Example],
        adapter: Adapter,
        forward: Rounding | None = None,
        start_layer: int = 0,
        masks: Mapping[str, Floats] | None = None,
    ) -> tuple[float, Gradients]:
        """Mean loss over the trained tokens and the gradients of it, zero below ``start_layer``.

        masks: by module path, what the input [T, K] of its LoRA branch is multiplied with.
        """
        model = self.with_adapter(adapter, start_layer)
        for path, mask in (masks or {}).items():
            model.get_submodule(path).lora_dropout["default"] = Mask(mask)
        with rounding(forward):
            loss = mean_loss(model, examples)
            loss.backward()
        return float(loss.detach()), {
            name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy() for name, p in trainable(model).items()
        }


class Mask(torch.nn.Module):
    """A dropout whose mask is given."""

    def __init__(self, mask: Floats) -> None:
        super().__init__()
        self.mask = torch.tensor(mask, dtype=torch.float32)

    def forward(self, x: Any) -> Any:
        return x * self.mask


def trainable(model: Any) -> dict[str, Any]:
    """A peft model's adapter parameters, named as in its files, in the model's order."""
    return {n.replace(".default.", "."): p for n, p in model.named_parameters() if ".lora_" in n}


def mean_loss(model: Any, examples: Sequence[Example]) -> Any:
    """Cross entropy of all trained tokens of several examples, divided by their number; a forward for each example."""
    losses: list[Any] = []
    count = 0
    for item in examples:
        logits = model(input_ids=torch.tensor([item.ids])).logits[0]
        targets = torch.tensor(item.targets.astype(np.int64))
        losses.append(torch.nn.functional.cross_entropy(logits, targets, ignore_index=-1, reduction="sum"))
        count += int((item.targets >= 0).sum())
    return sum(losses) / count
