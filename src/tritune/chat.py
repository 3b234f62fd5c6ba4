"""Chat: a conversation that keeps its messages, and through the engine its KV cache, from turn to turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritune.lora import AdapterLike, as_one
from tritune.model import Model
from tritune.stream import TextStream
from tritune.text import Message


class Chat:
    """One conversation with a model. ``say`` streams the answer and remembers both sides."""

    def __init__(
        self, model: Model, adapter: AdapterLike | None = None, system: str | None = None, **options: Any
    ) -> None:
        """options: those of ``Model.stream``, for every turn."""
        self.model = model
        self.adapter = as_one(adapter)
        self.options = options
        self.last: TextStream | None = None
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages: list[Message] = list(self._system)

    def say(self, text: str) -> Iterator[str]:
        """The answer to ``text``, in pieces. Raises ContextLengthError when the conversation has outgrown the
        context."""
        asked: list[Message] = [*self.messages, {"role": "user", "content": text}]
        stream = self.last = self.model.stream(asked, self.adapter, **self.options)
        return self._answer(asked, stream)

    def _answer(self, asked: list[Message], stream: TextStream) -> Iterator[str]:
        pieces: list[str] = []
        try:
            for piece in stream:
                pieces.append(piece)
                yield piece
        finally:  # an answer that was interrupted is remembered as far as it went
            if pieces:
                self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]

    def reset(self) -> None:
        """Forget the conversation (but not the system prompt)."""
        self.messages = list(self._system)
