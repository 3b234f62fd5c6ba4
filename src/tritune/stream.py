"""TextStream: generated tokens as text, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tritune.generation import FinishReason, Token
from tritune.text import Detokenizer, StopStrings, Tokenizer


class TextStream:
    """Iterate to get the pieces of an answer; they never break a character, and joined they are the whole answer.

    After the end, ``finish_reason`` is ``stop`` (an eos token or a stop string) or ``length`` (max_tokens).
    """

    def __init__(
        self, tokenizer: Tokenizer, tokens: Iterator[Token], stop: Sequence[str], num_prompt_tokens: int
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = 0
        self.token_ids: list[int] = []
        self._pieces = self._run(tokens, Detokenizer(tokenizer), StopStrings([stop] if isinstance(stop, str) else stop))

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def read(self) -> str:
        """All (remaining) text at once."""
        return "".join(self._pieces)

    def _run(self, tokens: Iterator[Token], detokenizer: Detokenizer, stops: StopStrings) -> Iterator[str]:
        for token in tokens:
            self.num_tokens += 1
            self.token_ids.append(token.id)
            text = "" if token.finish_reason == "stop" else detokenizer.push(token.id)
            piece = stops.push(text)
            if piece:
                yield piece
            if stops.stopped:
                self.finish_reason = "stop"
                return
            if token.finish_reason is not None:
                self.finish_reason = token.finish_reason
        rest = stops.push(detokenizer.flush())
        rest += stops.flush()
        if stops.stopped:
            self.finish_reason = "stop"
        if rest:
            yield rest
