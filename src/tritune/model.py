"""Model: a ternary model on a device with its tokenizer: logits, gradients, and generated text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tritune.assets import BUILTIN_MODEL
from tritune.backends import open_backend
from tritune.backends.base import Backend
from tritune.errors import ConfigError, ContextLengthError, OutOfMemoryError
from tritune.formats.fields import short
from tritune.generation import Engine, Engines, GenerationSettings
from tritune.lora import Adapter, AdapterLike, AdapterPool, as_one
from tritune.models.batch import Piece
from tritune.models.bitnet import Activations, BitNet, Head
from tritune.models.cache import CachedSequence
from tritune.models.config import GenerationDefaults, ModelConfig
from tritune.models.footprint import Footprint, footprint
from tritune.models.inference import bucket_of
from tritune.models.training_state import MicroBatch, TrainingState, next_token_targets
from tritune.models.weights import ModelSource, open_model
from tritune.stream import TextStream
from tritune.text import ChatTemplate, Message, Tokenizer, encode_chat

Number = TypeVar("Number", int, float)

Prompt = str | Sequence[Message] | Sequence[int]


def load(
    path_or_id: str | Path | None = None,
    device: str = "auto",
    activations: Activations = "int8",
    *,
    chat_template: str | Path | None = None,
    context: int | None = None,
    kv_dtype: Literal["f16", "f32"] = "f16",
    head: Head = "stored",
    progress: bool = True,
    threads: int | None = None,
) -> Model:
    """Load a model onto a device.

    Args:
        path_or_id: A Hugging Face directory, a .gguf file, or a model id ``org/name``, which is downloaded, with
            progress. None: the built-in model.
        device: ``auto`` (the best hardware GPU, else the CPU), ``webgpu``, ``webgpu:`` with a number or a part of a
            name, ``cpu``, or ``numpy``.
        activations: ``float`` turns the int8 rounding off, for exactness tests.
        chat_template: In the place of the model's own: a built-in name, a file, or the template itself.
        context: Most positions of prompt and answer together (default: the model's).
        kv_dtype: Of the cached keys and values.
        head: ``int8`` holds the output head's rows in int8 (on the CPU): half the bytes a step reads of it, and not
            quite the same logits.
        progress: Show a bar while something is downloaded.
        threads: How many compute on the CPU (default: its physical cores).

    Raises:
        ModelFileError: The model's files are missing, damaged or of a kind that is not supported.
        DeviceError: There is no such device.
        OutOfMemoryError: The device has too little memory.
        ConfigError: A setting has a value that cannot be used.
    """
    if activations not in ("int8", "float"):
        raise ConfigError(f"activations {activations!r}: expected int8 or float")
    if kv_dtype not in ("f16", "f32"):
        raise ConfigError(f"kv_dtype {kv_dtype!r}: expected f16 or f32")
    if head not in ("stored", "int8"):
        raise ConfigError(f"head {head!r}: expected stored or int8")
    if context is not None and context < 1:
        raise ConfigError(f"context: expected a number >= 1, found {context}")
    source = open_model(BUILTIN_MODEL if path_or_id is None else path_or_id, progress=progress)
    backend = open_backend(device, threads)
    try:
        model = Model(
            source, backend, activations, chat_template=chat_template, context=context, kv_dtype=kv_dtype, head=head
        )
    except BaseException:
        backend.close()
        raise
    model.loaded_with = {
        "model": path_or_id,
        "device": backend.name if device == "auto" else device,
        "threads": threads,
        "chat_template": chat_template,
    }
    return model


def load_text(
    path_or_id: str | Path | None = None, chat_template: str | Path | None = None
) -> tuple[Tokenizer, ChatTemplate]:
    """The tokenizer and the chat template that ``load`` would use, without the weights and without a device.

    Raises ModelFileError, ConfigError.
    """
    source = open_model(BUILTIN_MODEL if path_or_id is None else path_or_id)
    tokenizer = _tokenizer(source)
    return tokenizer, ChatTemplate.resolve(tokenizer, chat_template, source.config.model_type)


class Model:
    """A loaded model. Made by ``load``."""

    def __init__(
        self,
        source: ModelSource,
        backend: Backend,
        activations: Activations = "int8",
        *,
        chat_template: str | Path | None = None,
        context: int | None = None,
        kv_dtype: Literal["f16", "f32"] = "f16",
        head: Head = "stored",
    ) -> None:
        self.source = source
        self.config: ModelConfig = source.config
        self.generation_defaults: GenerationDefaults = source.generation
        self.backend = backend
        self.tokenizer = _tokenizer(source)
        self.template = ChatTemplate.resolve(self.tokenizer, chat_template, self.config.model_type)
        self.context_length = min(context or self.config.max_positions, self.config.max_positions)
        # Exact arithmetic is what activations="float" is for, so its cache is not rounded either.
        self.kv_dtype: Literal["f16", "f32"] = "f32" if activations == "float" else kv_dtype
        self.device_model = self._load(activations, head)
        self._engines = Engines(self.device_model, self.context_length, self.kv_dtype)
        self.loaded_with: Mapping[str, str | Path | int | None] = {}
        """What ``load`` was called with, for the record of a run."""
        self._training: tuple[tuple[object, ...], AdapterPool, TrainingState] | None = None

    def _load(self, activations: Activations, head: Head) -> BitNet:
        """The weights on the device. Raises OutOfMemoryError with what the model needs, where the device tells its
        room before anything is loaded."""

        def need() -> Footprint:
            return footprint(self.source, self.context_length, self.kv_dtype, int8_head=head == "int8")

        room, device = self.backend.room, self.backend.description
        if room is not None and need().total > room:
            raise OutOfMemoryError(f"{self.name} needs {need()}; {device} has room for {room / 1e9:.2f} GB")
        try:
            return BitNet(self.backend, self.source, activations, head)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"{error}; {self.name} needs {need()}") from error

    @property
    def name(self) -> str:
        """The model's name or id, as adapters record it."""
        return self.config.name

    def close(self) -> None:
        """Free the device's memory; the model cannot be used afterwards."""
        self._engines.clear()
        self._training = None
        self.backend.close()

    # -- numbers ------------------------------------------------------------------------------------------------------
    def logits(self, token_ids: Sequence[int], adapter: AdapterLike | None = None) -> NDArray[np.float32]:
        """Logits float32 [T, vocab] after each of the T tokens. Raises ConfigError, ContextLengthError."""
        tokens = self._checked(token_ids)
        engine = self.engine(adapter)
        sequence = CachedSequence(engine.state.cache)
        engine.sequence.truncate(0)
        parts: list[NDArray[np.float32]] = []
        try:
            for start in range(0, len(tokens), engine.state.max_rows):
                rows = tokens[start : start + engine.state.max_rows]
                sequence.extend(rows)
                piece = Piece(rows, start, engine.slot, engine.multiplier, tuple(sequence.blocks))
                parts.append(engine.state.logits([piece]))
        finally:
            sequence.truncate(0)
        return np.concatenate(parts)

    def loss_and_gradients(
        self,
        token_ids: Sequence[int],
        trained: Sequence[bool] | NDArray[np.bool_],
        adapter: Adapter,
        *,
        start_layer: int = 0,
        recompute: bool = True,
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """(mean loss over the trained tokens, gradient of each adapter tensor by its PEFT name).

        trained[i]: token i is a target, predicted from the tokens before it (the first token never is). Layers below
        start_layer get zero gradients. Raises ConfigError, ContextLengthError.
        """
        tokens = self._checked(token_ids)
        targets = next_token_targets(tokens, trained)
        _, state = self.training_state(
            adapter, bucket_of(len(tokens), 1 << 30), start_layer=start_layer, recompute=recompute
        )
        state.clear()
        padded = np.concatenate([targets, np.full(state.max_rows - len(targets), -1, np.int32)])
        state.forward_backward(MicroBatch([Piece(tokens, 0, 1)], padded))
        flat = self.backend.read(state.grads).astype(np.float32)
        loss, count = self.backend.read(state.totals)[:2].tolist()
        gradients = {name: view / np.float32(count) for name, view in adapter.tensors(flat).items()}
        return loss / count, gradients

    def training_state(
        self,
        adapter: Adapter,
        max_rows: int,
        *,
        max_sequences: int | None = None,
        start_layer: int = 0,
        recompute: bool = True,
        dropout: float = 0.0,
        own_b_settings: bool = False,
        noisy: bool = False,
        exclusive: bool = False,
    ) -> tuple[AdapterPool, TrainingState]:
        """A pool with the adapter's weights loaded, and what it takes to train it; the last one is reused if it fits.

        dropout: of the LoRA inputs; its seed and step are read from ``dropout_state``. own_b_settings: the optimizer
        reads ``settings_b`` for B. noisy: ``noise`` is added to the embeddings. exclusive: nobody else will be given
        this one.
        """
        key = (adapter.targets, max_rows, max_sequences, start_layer, recompute, dropout, own_b_settings, noisy)
        found = self._training if self._training is not None and self._training[0] == key else None
        self._training = None
        if found is None:
            adapter.check_fits(self.config)
            pool = AdapterPool.for_adapters(self.backend, [adapter])
            dropout_state = self.backend.empty((2,), "u32")
            pool.set_dropout(dropout, dropout_state)
            state = TrainingState(
                self.device_model,
                pool,
                pool.flat,
                max_rows=max_rows,
                max_sequences=max_sequences,
                start_layer=start_layer,
                recompute=recompute,
                dropout_state=dropout_state,
                b_start=pool.layout.b_start if own_b_settings else None,
                noisy=noisy,
            )
            found = (key, pool, state)
        else:
            found[1].load([adapter])
        if not exclusive:
            self._training = found
        return found[1], found[2]

    # -- text ---------------------------------------------------------------------------------------------------------
    def generate(self, prompt: Prompt, adapter: AdapterLike | None = None, **options: object) -> str:
        """The text that follows a prompt; the options are those of ``stream``."""
        return self.stream(prompt, adapter, **options).read()  # type: ignore[arg-type]

    def stream(
        self,
        prompt: Prompt,
        adapter: AdapterLike | None = None,
        *,
        max_tokens: int | None = None,
        temperature: float | None = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        raw: bool = False,
    ) -> TextStream:
        """Generate text piece by piece: iterate over the result; then its finish_reason says why it ended.

        A setting of None means the model's own generation_config.

        Args:
            prompt: Text (one user turn in the model's chat template, unless ``raw`` or the model has none), chat
                messages, or token ids.
            adapter: One, or several with weights, ``[(a, 0.7), (b, 0.3)]``, whose weighted corrections are added.
            max_tokens: Most new tokens; None: the model's own setting, at most what the context has room for.
            temperature: 0 always takes the likeliest token.
            top_k: Draw from the k likeliest tokens; 0 = off.
            top_p: Draw from the tokens that make up this share; 1 = off.
            min_p: Leave out tokens below this share of the likeliest one; 0 = off.
            repetition_penalty: Divides the scores of tokens that were there already; 1 = off.
            seed: The same seed draws the same text.
            stop: Texts that end the answer and are not part of it.
            ignore_eos: Go on after an end token, up to max_tokens.
            raw: Continue the text as it is, without a chat template.

        Raises:
            ConfigError: A setting has a value that cannot be used.
            ContextLengthError: Prompt and max_tokens do not fit the context.
            AdapterError: The adapter was made for a model of another size.
        """
        ids = self.encode_prompt(prompt, raw=raw)
        settings = self.settings(
            len(ids),
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            ignore_eos=ignore_eos,
        )
        return TextStream(self.tokenizer, self.engine(adapter).generate(ids, settings), stop, len(ids))

    def settings(
        self,
        prompt_length: int,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        ignore_eos: bool = False,
    ) -> GenerationSettings:
        """Settings in which None is filled in from the model's generation_config.

        Raises ConfigError, and ContextLengthError when prompt and max_tokens exceed the context.
        """
        own = self.generation_defaults
        if temperature is None:
            temperature = _first(own.temperature, 1.0) if own.do_sample else 0.0
        if max_tokens is None:
            room = self.context_length - prompt_length
            if room < 1:
                raise ContextLengthError(
                    f"a prompt of {prompt_length} tokens leaves no room in the context of {self.context_length}"
                )
            max_tokens = min(own.max_new_tokens or 256, room)
        settings = GenerationSettings(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=_first(top_k, own.top_k, 0),
            top_p=_first(top_p, own.top_p, 1.0),
            min_p=_first(min_p, own.min_p, 0.0),
            repetition_penalty=_first(repetition_penalty, own.repetition_penalty, 1.0),
            seed=seed,
            eos_ids=() if ignore_eos else tuple(dict.fromkeys((*own.eos_token_ids, *self.tokenizer.end_ids))),
        )
        settings.check_context(prompt_length, self.context_length)
        return settings

    def encode_prompt(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Token ids of a prompt; see ``stream``."""
        if isinstance(prompt, str):
            if raw or self.template.is_fallback:
                return self.tokenizer.encode_prompt(prompt)
            prompt = [{"role": "user", "content": prompt}]
        items: list[object] = list(prompt)
        if items and all(isinstance(item, Mapping) for item in items):
            return encode_chat(self.tokenizer, self.template, items)  # type: ignore[arg-type]
        for item in items:
            if isinstance(item, bool) or not isinstance(item, Integral):
                raise ConfigError(f"prompt: expected text, chat messages or token ids, found {short(item)}")
        return self._checked(items)  # type: ignore[arg-type]

    def engine(self, adapter: AdapterLike | None = None) -> Engine:
        """The engine that generates with an adapter (None: the base); made on first use, kept for the base and one
        adapter. Several adapters with weights are made one first."""
        one = as_one(adapter)
        if one is not None:
            one.check_fits(self.config)
        return self._engines.get(one)

    def _checked(self, token_ids: Sequence[int]) -> list[int]:
        tokens = [int(token) for token in token_ids]
        if not tokens:
            raise ConfigError("no tokens: the sequence is empty")
        wrong = next((token for token in tokens if not 0 <= token < self.config.vocab_size), None)
        if wrong is not None:
            raise ConfigError(f"token {wrong} is not in the vocabulary of {self.config.vocab_size}")
        if len(tokens) > self.context_length:
            raise ContextLengthError(f"{len(tokens)} tokens; the context holds {self.context_length}")
        return tokens


def _tokenizer(source: ModelSource) -> Tokenizer:
    if source.directory is not None:
        return Tokenizer.from_directory(source.directory)
    assert source.gguf_metadata is not None
    return Tokenizer.from_gguf(source.gguf_metadata, source.config.name)


def _first(*values: Number | None) -> Number:
    return next(value for value in values if value is not None)
