"""Engine: tokens in, tokens out, for one sequence on a device. It knows token ids only.

The keys and values of what was fed stay in the cache, so a prompt that begins like the last one (the next turn of a
chat)
is only fed from where it differs. Each token costs one submit; nothing is allocated on the device between tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tritune.errors import ConfigError
from tritune.generation.settings import GenerationSettings
from tritune.models.batch import Piece
from tritune.models.cache import BLOCK_SIZE, CachedSequence
from tritune.models.inference import InferenceState, bucket_of

FEW_ROWS = 256
"""Rows up to which a program of the next power of two is run, however many of them are spare."""
FinishReason = Literal["stop", "length"]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Token:
    """A generated token. finish_reason is set on the last one: stop (an eos id) or length (max_tokens)."""

    id: int
    logprob: float  # in the model's own distribution, before temperature and filters (see Backend.sampling_logits)
    finish_reason: FinishReason | None


class Engine:
    """Generates for one sequence at a time over an InferenceState."""

    def __init__(
        self,
        state: InferenceState,
        *,
        slot: int = 0,
        multiplier: float = 1.0,
        context: int | None = None,
        make_room: Callable[[Engine], None] | None = None,
    ) -> None:
        """slot: the pool's adapter to use (0 = none); multiplier: a factor on its correction; context: a limit below
        the model's and the cache's; make_room: called before a prompt is fed, to free blocks that others hold."""
        self.state = state
        self.slot = slot
        self.multiplier = multiplier
        self.sequence = CachedSequence(state.cache)
        self._context = context
        self._make_room = make_room

    @property
    def context_length(self) -> int:
        """Most tokens that prompt and answer may have together."""
        limit = min(self.state.model.config.max_positions, self.state.cache.num_blocks * BLOCK_SIZE)
        return limit if self._context is None else min(limit, self._context)

    def generate(self, prompt: Sequence[int], settings: GenerationSettings) -> Iterator[Token]:
        """Tokens after ``prompt``, as they are drawn; an eos id ends them and is itself the last one.

        Raises ConfigError for an empty prompt or an id outside the vocabulary, ContextLengthError when prompt and
        max_tokens exceed the context; both before anything is run. Several streams of an engine may be read in turns:
        each then feeds its text again where another has taken its place in the cache.
        """
        tokens = [int(token) for token in prompt]
        self._check(tokens, settings)
        return self._generate(tokens, settings)

    def _check(self, prompt: Sequence[int], settings: GenerationSettings) -> None:
        if not prompt:
            raise ConfigError("the prompt is empty: there is no token to start from")
        self.check_tokens(prompt)
        settings.check_context(len(prompt), self.context_length)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise ConfigError for an id outside the vocabulary."""
        vocabulary = self.state.model.config.vocab_size
        wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise ConfigError(f"prompt token {wrong} is not in the vocabulary of {vocabulary}")

    def _generate(self, prompt: list[int], settings: GenerationSettings) -> Iterator[Token]:
        """On an asynchronous backend the next token is already being computed when one is returned; when that one ends
        the text, what comes after it is dropped."""
        text, fresh, version, ahead = list(prompt), list[int](), -1, False
        for count in range(1, settings.max_tokens + 1):
            if self.sequence.version != version:  # at first, and when others used the engine since the last token
                fresh, ahead = self._feed_prompt(text), False
                self._write_sampling(text, settings, draw=count - 1)
            if not ahead:
                self.feed(fresh, self.state.submit_and_sample)
            ahead = self.state.backend.asynchronous and count < settings.max_tokens
            if ahead:
                self._feed_drawn()
            drawn = self.state.drawn(1, previous=ahead)
            token = int(drawn.tokens[0])
            text.append(token)
            ends = token in settings.eos_ids
            last = ends or count == settings.max_tokens
            if ahead and not ends:
                self.sequence.extend([token])
            version = self.sequence.version
            reason: FinishReason | None = ("stop" if ends else "length") if last else None
            yield Token(token, float(drawn.logprobs[0]), reason)
            if last:
                return
            fresh = [token]

    def _feed_drawn(self) -> None:
        """Run the next row on the token that the device draws; its place in the sequence is noted when it is known."""
        self.sequence.reserve(1)
        start, blocks = len(self.sequence.tokens), tuple(self.sequence.blocks)
        self.state.feed_drawn([Piece((0,), start, self.slot, self.multiplier, blocks)])

    def _feed_prompt(self, prompt: list[int]) -> list[int]:
        """Feed the prompt from where the cache ends but for its last rows, which are returned."""
        if self._make_room is not None:
            self._make_room(self)
        start = min(self.sequence.common_prefix(prompt), len(prompt) - 1)
        self.sequence.truncate(start)
        rest = prompt[start:]
        while (count := rows_to_feed(len(rest), self.state.max_rows)) < len(rest):
            self.feed(rest[:count], self.state.forward)
            rest = rest[count:]
        return rest

    def feed(self, tokens: list[int], run: Callable[[Sequence[Piece]], Result]) -> Result:
        """Run the next rows of the sequence. When that is interrupted, nothing of them counts as cached."""
        start = len(self.sequence.tokens)
        try:
            self.sequence.extend(tokens)
            return run([Piece(tokens, start, self.slot, self.multiplier, tuple(self.sequence.blocks))])
        except BaseException:
            self.sequence.truncate(start)
            raise

    def _write_sampling(self, prompt: list[int], settings: GenerationSettings, draw: int) -> None:
        numbers = (settings.temperature, settings.top_p, settings.min_p, settings.repetition_penalty)
        self.state.set_sampling(
            np.array([numbers], np.float32),
            np.array([[settings.top_k, settings.seed, draw, 0]], np.uint32),
            token_set(prompt, self.state.model.config.vocab_size)[None],
        )


def token_set(tokens: Sequence[int], vocab_size: int) -> NDArray[np.uint32]:
    """A set of tokens as u32 words [ceil(V / 32)], bit v % 32 of word v // 32."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    bits[list(tokens)] = True
    return np.packbits(bits, bitorder="little").view(np.uint32)


def rows_to_feed(count: int, limit: int) -> int:
    """How many of ``count`` rows to run next: all of them, or a power of two where its program would be mostly full and
    the one for all of them a quarter empty."""
    if count <= limit and (count <= FEW_ROWS or 5 * count >= 4 * bucket_of(count, limit)):
        return count
    return min(limit, 1 << (count - 1).bit_length() - 1)
