"""A linear of a single row with its neighbours in the same dispatch, as in decoding: see kernels/linear_row.wgsl.

Recorded one after the other, a linear, the norm of what it made and the next linear become two dispatches. The second
one norms and quantises its input itself, each of its workgroups anew: that is cheap beside the wait for one more
dispatch. Of the next linear's LoRA, the first linear makes the first factor, of its own outputs in each workgroup.
"""

from __future__ import annotations

from dataclasses import replace

from tritune.backends.base import Buffer, LoRA, Rows

from .buffers import own_buffer, same_memory
from .core import WebGPUCore
from .held_linear import Front, Glu, HeldLinear, Tail, fits_vectors, most_threads, row_shape, sums_scratch
from .ops_rows import HeldNorm
from .weights import WebGPUTernary


class OneRowOps(WebGPUCore):
    """linear for a single row, while it is recorded."""

    def linear_one(
        self,
        x: Buffer,
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
        norm = self.take(HeldNorm, lambda norm: _made(norm, x, codes, scales))
        if norm is None:
            return False
        held = HeldLinear(self, w, y, rows, accumulate, lora, Front(own_buffer(x), None))
        held = self._after_norm(held, norm) or self._after_codes(held, norm)
        if held is None:
            self.hold(norm)
            return False
        self.hold(held)
        return True

    def _can_be_one(self, w: WebGPUTernary, y: Buffer, lora: LoRA | None) -> bool:
        wanted = self.device.options.one_row
        if wanted is None:
            wanted = not self.device.info.software  # which waits for nothing
        if not wanted or self.recording is None or y.shape[0] != 1 or w.in_features % 64:
            return False
        threads = row_shape(w.in_features, most_threads(self)).threads
        return lora is None or (fits_vectors(lora) and len(w.parts) * lora.rank <= threads and lora.down.transient)

    def _after_norm(self, held: HeldLinear, norm: HeldNorm) -> HeldLinear | None:
        """The linear with the norm in it, behind the linear before, which is recorded now."""
        outputs = (norm.normed, norm.codes, norm.scales)
        source = norm.source if isinstance(norm.source, HeldLinear) else None
        if norm.attention is not None or not all(b is None or b.transient for b in outputs):
            return None
        if source is None and (held.lora is not None or norm.activation is not None):
            return None
        x, glu, lora = norm.x, None, held.lora
        if norm.activation is not None:
            x = norm.normed or self.scratch("glu", norm.columns)
            glu = Glu(norm.activation, x)
        if source is not None:
            tail = None if lora is None else Tail(norm.gain, lora, len(held.weight.parts) * lora.rank)
            if (glu is not None and not source.makes_glu()) or not source.can(tail, glu):
                return None
            held = replace(held, sums_at=source.tail_at, producers=source.workgroups(glu is not None))
        else:
            tail = None
        front = Front(own_buffer(x), None, norm.gain, norm.gain is not None, norm.eps)
        held = replace(held, front=front)
        if not held.can(None, None):
            return None
        if source is not None:
            source.dispatch(tail, glu)
        return held

    def _after_codes(self, held: HeldLinear, norm: HeldNorm) -> HeldLinear | None:
        """The linear of what the norm's dispatch makes, which is recorded now."""
        coded, lora = norm.coded, held.lora
        if coded is None or coded[1][0] or not norm.held:
            return None
        held = replace(held, front=Front(coded[0], coded[1][1]))
        if not held.can(None, None):
            return None
        if lora is None:
            norm.run()
        else:
            width = len(held.weight.parts) * lora.rank
            down = sums_scratch(self).view(0, (1, width))
            norm.run_with_lora_down(replace(lora, down=down), held.rows, width)
        return held


def _made(norm: HeldNorm, x: Buffer, codes: Buffer, scales: Buffer) -> bool:
    if norm.codes is None or norm.scales is None or not same_memory(codes, norm.codes):
        return False
    return same_memory(scales, norm.scales)
