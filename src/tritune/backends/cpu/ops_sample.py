"""Drawing a token from the logits."""

from __future__ import annotations

from tritune.backends.base import SAMPLE_SETTINGS, SAMPLE_STATE, Buffer

from .core import CpuCore


class SampleOps(CpuCore):
    """See Backend for the op's contract, native/sample.cpp for how it is computed."""

    def sample(
        self,
        logits: Buffer,
        settings: Buffer,
        state: Buffer,
        seen: Buffer,
        allowed: Buffer | None,
        token: Buffer,
        logprob: Buffer,
    ) -> None:
        """See Backend.sample."""
        sequences, vocabulary = logits.shape
        words = -(-vocabulary // 32)
        self.expect("sample", "logits", logits, "f32", sequences, vocabulary)
        self.expect("sample", "settings", settings, "f32", sequences, len(SAMPLE_SETTINGS))
        self.expect("sample", "state", state, "u32", sequences, len(SAMPLE_STATE))
        self.expect("sample", "seen", seen, "u32", sequences, words)
        self.expect("sample", "token", token, "i32", sequences)
        self.expect("sample", "logprob", logprob, "f32", sequences)
        if allowed is not None:
            self.expect("sample", "allowed", allowed, "u32", sequences, words)
        scratch = self.scratch("sample", self.threads * (2 * vocabulary + -(-vocabulary // 64)))
        self.call(
            "sample", logits, settings, state, seen, allowed, token, logprob, scratch, sequences, vocabulary, words
        )
