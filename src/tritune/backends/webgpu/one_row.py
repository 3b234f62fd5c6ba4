"""A linear of a single row with its neighbours in the same dispatch, as in decoding: see kernels/linear_row.wgsl.

Recorded one after the other, a linear, the norm of what it made and the next linear become two dispatches. The second
one norms and quantises its input itself, each of its workgroups anew: that is cheap beside the wait for one more
dispatch. Of the next linear's LoRA, the first linear makes the first factor, of its own outputs in each workgroup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tritune.backends.base import Buffer, LoRA, Rows

from .buffers import own_buffer, same_memory
from .core import WebGPUCore
from .few_rows_attention import HeldAttention
from .held_linear import Front, Glu, HeldLinear
from .ops_rows import HeldNorm
from .tails import Tail, fits_vectors, sums_scratch
from .weights import WebGPUTernary

Plan = tuple[HeldLinear, Callable[[], None]]
"""A linear, and what records the dispatch before it."""


class OneRowOps(WebGPUCore):
    """linear for a single row, while it is recorded."""

    def linear_one(
        self,
        codes: Buffer | None,
        scales: Buffer | None,
        w: WebGPUTernary,
        y: Buffer,
        rows: Rows,
        accumulate: bool,
        lora: LoRA | None,
    ) -> bool:
        """See Backend.linear. False, with nothing done, where the kernel cannot do it."""
        if codes is None or scales is None or not self._can_be_one(w, y, lora):
            return False
        plans: list[Plan] = []

        def planned(norm: HeldNorm) -> bool:
            """Whether there is a plan for the linear of what ``norm`` quantises."""
            if norm.codes is None or norm.scales is None:
                return False
            if not (same_memory(codes, norm.codes) and same_memory(scales, norm.scales)):
                return False
            linear = partial(HeldLinear, self, w, y, rows, accumulate, lora)
            plan = self._with_norm(linear, norm, lora) or self._after_norm(linear, norm, lora)
            plans.extend([] if plan is None else [plan])
            return plan is not None

        if self.take(HeldNorm, planned) is None:
            return False
        held, record_before = plans[0]
        record_before()
        self.hold(held)
        return True

    def _can_be_one(self, w: WebGPUTernary, y: Buffer, lora: LoRA | None) -> bool:
        wanted = self.device.options.one_row
        if wanted is None:
            wanted = not self.device.info.software  # which waits for nothing
        if not wanted or self.recording is None or y.shape[0] != 1 or w.in_features % 64:
            return False
        return lora is None or (fits_vectors(lora) and lora.down.transient)

    def _with_norm(self, linear: Callable[..., HeldLinear], norm: HeldNorm, lora: LoRA | None) -> Plan | None:
        """The linear with the norm in it, behind the linear before."""
        outputs = (norm.normed, norm.codes, norm.scales)
        if not all(b is None or b.transient for b in outputs):
            return None
        if norm.attention is not None:
            return self._behind_attention(linear, norm, norm.attention, lora)
        source = norm.source if isinstance(norm.source, HeldLinear) else None
        if source is None:
            if lora is not None or norm.activation is not None:
                return None
            held = linear(Front(own_buffer(norm.x), None, norm.gain, norm.eps))
            return (held, _nothing) if held.can(None, None) else None
        x, glu = norm.x, None
        if norm.activation is not None:
            x = norm.normed or self.scratch("glu", norm.columns)
            glu = Glu(norm.activation, x)
        tail = None if lora is None else Tail(norm.gain, lora)
        if (glu is not None and not source.makes_glu()) or not source.can(tail, glu):
            return None
        front = Front(own_buffer(x), None, norm.gain, norm.eps)
        held = linear(front, source.tail_at, source.workgroups(glu is not None))
        return (held, partial(source.dispatch, tail, glu)) if held.can(None, None) else None

    def _behind_attention(
        self, linear: Callable[..., HeldLinear], norm: HeldNorm, attention: HeldAttention, lora: LoRA | None
    ) -> Plan | None:
        """The linear with the norm in it and the joining of attention's splits."""
        tail = None if lora is None else Tail(norm.gain, lora)
        if not (attention.splits == 1 or norm.x.transient) or not attention.can(tail):
            return None
        x = own_buffer(attention.out)
        front = Front(x, None, norm.gain, norm.eps, attention.splits, attention.head_dim)
        held = linear(front, 0, attention.producers)
        return (held, partial(attention.attend, tail)) if held.can(None, None) else None

    def _after_norm(self, linear: Callable[..., HeldLinear], norm: HeldNorm, lora: LoRA | None) -> Plan | None:
        """The linear behind the norm's dispatch, which makes LoRA's first factor too."""
        coded = norm.coded
        if coded is None or coded[1][0] or not norm.held:
            return None
        held = linear(Front(coded[0], coded[1][1]))
        if not held.can(None, None):
            return None
        if lora is None:
            return held, norm.run
        width = lora.a.shape[1]
        down = sums_scratch(self).view(0, (1, width))
        return held, partial(norm.run_with_lora_down, replace(lora, down=down), held.rows, width)


def _nothing() -> None:
    pass
