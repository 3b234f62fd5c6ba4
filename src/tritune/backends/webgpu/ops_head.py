"""What follows the logits: loss, its gradient, and drawing a token."""

from __future__ import annotations

from tritune.backends.base import Buffer

from .core import WebGPUCore

SCANNED_VOCABULARY = 16384
"""From this size on the logits are read by many workgroups at first."""


class HeadOps(WebGPUCore):
    """See Backend for each op's contract, kernels/<op>.wgsl for its layout and work split."""

    def cross_entropy(self, logits: Buffer, targets: Buffer, coefficients: Buffer, nll: Buffer, backward: bool) -> None:
        """See Backend.cross_entropy."""
        num_rows, vocabulary = logits.shape
        self.dispatch(
            "cross_entropy",
            params=[num_rows, vocabulary],
            buffers=[logits, targets, nll, coefficients] if backward else [logits, targets, nll],
            grid=(num_rows, 1, 1),
            variant={"backward": backward},
        )

    def add_loss(self, nll: Buffer, coefficients: Buffer, totals: Buffer) -> None:
        """See Backend.add_loss."""
        self.dispatch("add_loss", params=[nll.size], buffers=[nll, coefficients, totals], grid=(1, 1, 1))

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
        words, masked = -(-vocabulary // 32), [] if allowed is None else [allowed]
        piece = 4 * self.device.workgroup_size
        pieces = -(-vocabulary // piece) if vocabulary >= SCANNED_VOCABULARY else 0
        scanned = [self.scratch("scanned", sequences * pieces * 4)] if pieces else []
        if pieces:
            self.dispatch(
                "sample_scan",
                params=[sequences, vocabulary, words, piece],
                buffers=[logits, settings, seen, *scanned, *masked],
                grid=(pieces, sequences, 1),
                variant={"masked": allowed is not None},
            )
        self.dispatch(
            "sample",
            params=[sequences, vocabulary, words],
            buffers=[logits, settings, state, seen, token, logprob, *masked, *scanned],
            grid=(sequences, 1, 1),
            variant={"masked": allowed is not None, "pieces": pieces},
        )
