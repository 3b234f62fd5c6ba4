"""The loss's sums and the optimizer step: gradient norm, clip factor and finite check, then AdamW."""

from __future__ import annotations

from tritune.backends.base import LOSS_TOTALS, OPTIMIZER_SETTINGS, OPTIMIZER_STATE, Buffer

from .core import CpuCore

NORM_PARTS = 256
"""``kNormParts`` of native/adamw.h."""


class OptimizerOps(CpuCore):
    """See Backend for each op's contract, native/adamw.cpp for its work split."""

    def add_loss(self, nll: Buffer, coefficients: Buffer, totals: Buffer) -> None:
        """See Backend.add_loss."""
        self.expect("add_loss", "nll", nll, "f32", nll.size)
        self.expect("add_loss", "coefficients", coefficients, "f32", nll.size)
        self.expect("add_loss", "totals", totals, "f32", len(LOSS_TOTALS))
        self.call("add_loss", nll, coefficients, totals, nll.size)

    def global_norm(self, grads: Buffer, totals: Buffer, settings: Buffer, state: Buffer) -> None:
        """See Backend.global_norm."""
        self.expect("global_norm", "grads", grads, "f32", grads.size)
        self.expect("global_norm", "totals", totals, "f32", len(LOSS_TOTALS))
        self._check_step("global_norm", settings, state)
        parts = self.scratch("norm parts", 2 * NORM_PARTS)  # doubles
        self.call("global_norm", grads, totals, settings, state, parts, grads.size)

    def adamw(self, parameters: Buffer, grads: Buffer, m: Buffer, v: Buffer, settings: Buffer, state: Buffer) -> None:
        """See Backend.adamw."""
        for name, buffer in (("parameters", parameters), ("grads", grads), ("m", m), ("v", v)):
            self.expect("adamw", name, buffer, "f32", grads.size)
        self._check_step("adamw", settings, state)
        self.call("adamw", parameters, grads, m, v, settings, state, grads.size)

    def _check_step(self, op: str, settings: Buffer, state: Buffer) -> None:
        self.expect(op, "settings", settings, "f32", len(OPTIMIZER_SETTINGS))
        self.expect(op, "state", state, "f32", len(OPTIMIZER_STATE))
