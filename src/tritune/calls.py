"""The low-level calls, for code that drives a model itself: token ids and states, no text, no files.

state = create_inference_state(model, adapter)
logits = forward_token(state, token, position)          # one token at a position, with LoRA
ids = generate(state, prompt_ids, max_tokens=64)

state = create_training_state(model, adapter, max_rows=512)
forward_backward(state, tokens, loss_mask)              # one submit; gradient and loss added up on the device
loss, count = read_loss(state)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ConfigError, ContextLengthError
from tritune.generation import Engine, GenerationSettings
from tritune.lora import Adapter, AdapterLike
from tritune.model import Model
from tritune.models.batch import Piece
from tritune.models.training_state import MicroBatch, TrainingState, next_token_targets


def create_inference_state(model: Model, adapter: AdapterLike | None = None) -> Engine:
    """Scratch buffers, programs and cache for one sequence; no backward buffer is among them.

    The model keeps one for the base and one for an adapter: asking again for the same one gives the same one.
    """
    return model.engine(adapter)


def create_training_state(
    model: Model, adapter: Adapter, *, max_rows: int, start_layer: int = 0, recompute: bool = True
) -> TrainingState:
    """Buffers and programs to train an adapter on sequences of at most ``max_rows`` tokens, with its weights loaded."""
    _, state = model.training_state(adapter, max_rows, start_layer=start_layer, recompute=recompute)
    state.clear()
    return state


def forward_token(state: Engine, token: int, position: int) -> NDArray[np.float32]:
    """Logits float32 [vocab] after a token at a position; what the cache holds from there on is forgotten.

    Raises ConfigError when the cache does not reach up to ``position`` or the vocabulary not to ``token``,
    ContextLengthError at the end of the context.
    """
    held = len(state.sequence.tokens)
    if not 0 <= position <= held:
        raise ConfigError(f"position {position}: expected 0 … {held}, the cache holds {held} tokens")
    if position >= state.context_length:
        raise ContextLengthError(f"position {position}: the context holds {state.context_length} tokens")
    state.check_tokens([token])
    state.sequence.truncate(position)
    return state.feed([token], state.state.logits)[0]


def forward_backward(state: TrainingState, tokens: Sequence[int], loss_mask: Sequence[bool]) -> None:
    """Add the gradient, loss and token count of one sequence, in one submit; nothing is read back.

    loss_mask[i]: token i is a target. ``state.update_program()`` ends an optimizer step.
    Raises ConfigError for tokens that do not fit the state or the vocabulary, or a mask without a target.
    """
    if len(tokens) > state.max_rows:
        raise ConfigError(f"a sequence of {len(tokens)} tokens; the training state was made for {state.max_rows}")
    vocabulary = state.model.config.vocab_size
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise ConfigError(f"token {wrong} is not in the vocabulary of {vocabulary}")
    targets = np.full(state.max_rows, -1, np.int32)
    targets[: len(tokens)] = next_token_targets(tokens, loss_mask)
    state.forward_backward(MicroBatch([Piece(tokens, 0, 1)], targets))


def read_loss(state: TrainingState) -> tuple[float, int]:
    """(loss summed over the trained tokens since the last update, their number). Waits for the device."""
    loss, count = state.backend.read(state.totals)[:2].tolist()
    return float(loss), int(count)


def generate(
    state: Engine,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    eos_ids: Sequence[int] | None = None,
    repetition_penalty: float = 1.1,
) -> list[int]:
    """Token ids after ``prompt``; eos_ids None: never stop before max_tokens. An eos token is not returned."""
    settings = GenerationSettings(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        eos_ids=tuple(eos_ids or ()),
    )
    return [token.id for token in state.generate(prompt, settings) if token.finish_reason != "stop"]
