"""add_loss: add a micro-batch's loss and number of trained tokens to the sums of the optimizer step."""

from __future__ import annotations

from tritune.ops.arrays import FloatArray


def add_loss(nll: FloatArray, coefficients: FloatArray, totals: FloatArray) -> None:
    """totals [4] (backends/base.py, LOSS_TOTALS): step_loss += Σ coefficients * nll, step_tokens += Σ coefficients."""
    totals[0] += (coefficients * nll).sum()
    totals[1] += coefficients.sum()
