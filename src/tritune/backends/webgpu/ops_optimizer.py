"""The optimizer step: gradient norm, clip factor and finite check on the device, then AdamW."""

from __future__ import annotations

from tritune.backends.base import Buffer

from .core import WebGPUCore
from .ops_rows import ELEMENTWISE_GRID

NORM_PARTIALS = 256
"""Workgroups of global_norm's first pass, and so the partial sums that its second pass adds up."""


class OptimizerOps(WebGPUCore):
    """See Backend for each op's contract, kernels/<op>.wgsl for its layout and work split."""

    _norm_partials: Buffer | None = None  # f32 [NORM_PARTIALS], made by the first global_norm

    def global_norm(self, grads: Buffer, totals: Buffer, settings: Buffer, state: Buffer) -> None:
        """See Backend.global_norm."""
        if self._norm_partials is None:
            self._norm_partials = self.empty((NORM_PARTIALS,))
        count = min(-(-grads.size // self.device.workgroup_size), NORM_PARTIALS)
        partial = self._norm_partials
        self.dispatch("global_norm_partial", params=[grads.size], buffers=[grads, partial], grid=(count, 1, 1))
        self.dispatch("global_norm", params=[count], buffers=[partial, totals, settings, state], grid=(1, 1, 1))

    def adamw(self, parameters: Buffer, grads: Buffer, m: Buffer, v: Buffer, settings: Buffer, state: Buffer) -> None:
        """See Backend.adamw."""
        count = min(-(-grads.size // self.device.workgroup_size), ELEMENTWISE_GRID)
        self.dispatch(
            "adamw",
            params=[grads.size],
            buffers=[parameters, grads, m, v, settings, state],
            grid=(count, 1, 1),
        )
