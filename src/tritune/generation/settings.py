"""GenerationSettings: how tokens are drawn and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from tritune.errors import ConfigError, ContextLengthError
from tritune.formats.fields import short


@dataclass(frozen=True)
class GenerationSettings:
    """temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off.

    eos_ids: tokens that end generation (empty: never). seed: of the draws; the same seed gives the same tokens.
    Raises ConfigError for a value out of range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_tokens", "top_k", "seed"):
            self._check_type(name, Integral, "a whole number")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            self._check_type(name, Real, "a number")
        checks = (
            ("max_tokens", self.max_tokens, self.max_tokens >= 1, "a number >= 1"),
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "a number >= 0"),
            ("top_k", self.top_k, 0 <= self.top_k < 2**32, "a number in [0, 2^32) (0 = off)"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "a number in (0, 1]"),
            ("min_p", self.min_p, 0 <= self.min_p < 1, "a number in [0, 1)"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                0 < self.repetition_penalty < float("inf"),
                "a number > 0 (1 = off)",
            ),
            ("seed", self.seed, 0 <= self.seed < 2**32, "a number in [0, 2^32)"),
        )
        for name, value, fine, expected in checks:
            if not fine:
                raise ConfigError(f"{name}: expected {expected}, found {value}")

    def check_context(self, prompt_length: int, context_length: int) -> None:
        """Raise ContextLengthError when a prompt and max_tokens together exceed a context."""
        total = prompt_length + self.max_tokens
        if total > context_length:
            raise ContextLengthError(
                f"a prompt of {prompt_length} tokens and {self.max_tokens} new tokens make {total}; "
                f"the context holds {context_length}"
            )

    def _check_type(self, name: str, wanted: type, expected: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise ConfigError(f"{name}: expected {expected}, found {short(value)}")
