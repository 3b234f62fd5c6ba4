"""A deliberate error in any backward op makes the exactness check of way a fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.cases import PATTERNS
from oracles.harness import Gradients, Ours, close_gradients, example, random_adapter
from oracles.reference import identity
from oracles.taped import OPS, Arguments, Hook, Taped
from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend
from tritune.lora import LoRAConfig
from tritune.ops.causal_attention import split_heads

Run = Callable[[], None]


def wrong(part: Callable[[Arguments], Any], change: Callable[[Any], Any], adds: bool = False) -> Hook:
    """An op whose output ``part`` is changed; of what it adds to, only the addend is."""

    def hook(_: Backend, arguments: Arguments, run: Run) -> None:
        array = part(arguments)
        if array is None:
            return run()
        before = array.copy() if adds or arguments.get("accumulate") else np.zeros_like(array)
        run()
        array[...] = before + change(array - before)
        return None

    return hook


def buffer(name: str) -> Callable[[Arguments], Any]:
    """The array of an output, None if it is not wanted."""
    return lambda arguments: None if arguments[name] is None else arguments[name].array


def lora_grad(matrix: str) -> Callable[[Arguments], Any]:
    """The array that dA or dB is added to."""
    return lambda arguments: getattr(arguments["grad"], matrix).array


def head_part(index: int) -> Callable[[Arguments], Any]:
    """dq, dk or dv, a view."""
    return lambda a: split_heads(a["dqkv"].array, a["heads"], a["kv_heads"], a["head_dim"])[index]


def larger(x: Any) -> Any:
    return 1.01 * x


def dropped(x: Any) -> Any:
    return 0 * x


def one_row(x: Any) -> Any:
    """What a token-by-token backward returns: nothing reaches the rows before."""
    out = np.zeros_like(x)
    out[9] = x[9]
    return out


def residual_lost(_: Backend, arguments: Arguments, run: Run) -> None:
    if arguments["accumulate"]:
        arguments["dx"].array[...] = 0
    run()


def lora_part_of_dx_lost(backend: Backend, arguments: Arguments, run: Run) -> None:
    run()
    if arguments["dx"] is not None:
        changed = {k: v for k, v in arguments.items() if k not in ("self", "lora", "grad", "dropout")}
        backend.linear_backward(**changed)


def not_turned_back(_: Backend, arguments: Arguments, run: Run) -> None:
    pass


def turned_on(backend: Backend, arguments: Arguments, run: Run) -> None:
    values = [v for k, v in arguments.items() if k != "self"]
    backend.rope(*values)


def without_onehot(_: Backend, arguments: Arguments, run: Run) -> None:
    run()
    if arguments["backward"]:
        targets = arguments["targets"].array
        used = np.flatnonzero(targets >= 0)
        arguments["logits"].array[used, targets[used]] += arguments["coefficients"].array[used]


def norm_as_a_constant(backend: Backend, arguments: Arguments, run: Run) -> None:
    """glu_backward that multiplies with the gain and forgets that the norm depends on z."""
    scaled = NumpyBackend.upload(backend, arguments["dy"].array * arguments["gain"].array)
    values = {k: v for k, v in arguments.items() if k != "self"}
    backend.glu_backward(**(values | {"gain": None, "dy": scaled}))


def one_row_late(_: Backend, arguments: Arguments, run: Run) -> None:
    run()
    out = arguments["out"].array
    out[...] = np.roll(out, 1, axis=0)


PLANTED: dict[str, tuple[str, Hook]] = {
    "rms_norm_backward, 1% larger": ("rms_norm_backward", wrong(buffer("dx"), larger)),
    "rms_norm_backward, residual path lost": ("rms_norm_backward", residual_lost),
    "linear_backward, dx 1% larger": ("linear_backward", wrong(buffer("dx"), larger)),
    "linear_backward, dx without LoRA": ("linear_backward", lora_part_of_dx_lost),
    "linear_backward, dA 1% larger": ("linear_backward", wrong(lora_grad("a"), larger, adds=True)),
    "linear_backward, dB 1% larger": ("linear_backward", wrong(lora_grad("b"), larger, adds=True)),
    "rope_backward, left out": ("rope_backward", not_turned_back),
    "rope_backward, the wrong way": ("rope_backward", turned_on),
    "causal_attention_backward, dq 1% larger": ("causal_attention_backward", wrong(head_part(0), larger)),
    "causal_attention_backward, dk 1% larger": ("causal_attention_backward", wrong(head_part(1), larger)),
    "causal_attention_backward, dv 1% larger": ("causal_attention_backward", wrong(head_part(2), larger)),
    "causal_attention_backward, no dk": ("causal_attention_backward", wrong(head_part(1), dropped)),
    "causal_attention_backward, dk of one row only": ("causal_attention_backward", wrong(head_part(1), one_row)),
    "causal_attention_backward, dv of one row only": ("causal_attention_backward", wrong(head_part(2), one_row)),
    "glu_backward, 1% larger": ("glu_backward", wrong(buffer("dgate_up"), larger)),
    "glu_backward, the norm taken as a constant": ("glu_backward", norm_as_a_constant),
    "logits_backward, 1% larger": ("logits_backward", wrong(buffer("dx"), larger)),
    "cross_entropy, gradient 1% larger": ("cross_entropy", wrong(buffer("logits"), larger)),
    "cross_entropy, no one-hot": ("cross_entropy", without_onehot),
    "scatter_rows, 1% larger": ("scatter_rows", wrong(buffer("out"), larger)),
    "scatter_rows, a row late": ("scatter_rows", one_row_late),
}
LORA = LoRAConfig(rank=4, alpha=8, **PATTERNS)


@pytest.fixture(scope="module")
def expected(make) -> tuple[Any, Gradients]:
    """Directory of a model, and the gradients that peft and autograd find."""
    directory, reference = make(hidden=32, ffn=52)
    config = Ours(NumpyBackend(), directory).config
    item = example(config.vocab_size, 11)
    return directory, reference.loss_and_gradients([item], random_adapter(config, LORA), identity)[1]


def gradients_with(hooks: dict[str, Hook], directory: Any) -> Gradients:
    ours = Ours(Taped(NumpyBackend(), hooks), directory, "float")
    return ours.loss_and_gradients([example(ours.config.vocab_size, 11)], random_adapter(ours.config, LORA))[1]


def test_without_an_error_the_check_passes(expected: tuple[Any, Gradients]) -> None:
    directory, wanted = expected
    close_gradients(gradients_with({}, directory), wanted)


@pytest.mark.parametrize("name", PLANTED)
def test_error_is_caught(name: str, expected: tuple[Any, Gradients]) -> None:
    directory, wanted = expected
    op, hook = PLANTED[name]
    with pytest.raises(AssertionError, match="lora_"):
        close_gradients(gradients_with({op: hook}, directory), wanted)


def test_every_backward_op_has_an_error_planted() -> None:
    backward = {op for op in OPS if op.endswith("_backward")} | {"cross_entropy", "scatter_rows"}
    assert backward == {op for op, _ in PLANTED.values()}
