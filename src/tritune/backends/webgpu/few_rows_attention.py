"""Attention of at most FEW_ROWS rows over the cache, as in decoding: the context split over workgroups.

Recorded one after the other, rope_cache and paged_attention are one dispatch, and the splits are joined by the norm
that follows (see HeldNorm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import gcd

from tritune.backends.base import Buffer, Rows

from .buffers import covering, same_memory
from .core import Held, WebGPUCore
from .tails import HALF, Tail, fits_vectors, sums_scratch
from .work import RecordedOp

_SHARES = 16
"""Groups of threads of a workgroup, whose sums are joined one by one: more only to make it _LEAST_THREADS."""
_LEAST_THREADS = 64
_MOST_WIDTH = 256
"""Numbers of LoRA's first factor that a workgroup makes a share of, at most."""
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class AttentionShape:
    """How paged_attention_rows.wgsl splits its work: see there."""

    threads: int
    """Threads of a workgroup, about."""
    heads: int
    """Query heads that share the loads of their keys and values: the more, the less is loaded, and the longer a
    workgroup takes, which counts where one or two rows do not fill the device."""
    keys: int
    """Keys of a thread at a time, at most."""
    splits: int
    """Workgroups over which the context is split, at most. What joins them takes longer the more there are."""
    rope: bool = True
    """Whether rope_cache is done too, which each workgroup then does for its heads."""


def attention_shape(rows: int, workgroup_storage: int, *, software: bool) -> AttentionShape:
    """The shape for ``rows`` rows; measured on an H200."""
    if software:
        return AttentionShape(64, 4, 4, 1, rope=False)
    if rows == 1:
        return AttentionShape(256, 1, 8 if workgroup_storage >= 32768 else 4, 4)
    return AttentionShape(128, 2, 4, 8 if rows <= 4 else 4)


@dataclass(frozen=True)
class HeldRope(Held):
    """A rope_cache, which the attention of its rows can do itself."""

    dispatch: Callable[[], None]
    qkv: Buffer
    table: Buffer
    q: Buffer
    k_cache: Buffer
    v_cache: Buffer
    rows: Rows

    def run(self) -> None:
        """See Held."""
        self.dispatch()

    def feeds(self, q: Buffer, k_cache: Buffer, v_cache: Buffer, rows: Rows) -> bool:
        """Whether it rotates what an attention reads, and the kernel can do both."""
        pairs = ((self.q, q), (self.k_cache, k_cache), (self.v_cache, v_cache), (self.rows.positions, rows.positions))
        return k_cache.shape[3] % 8 == 0 and all(same_memory(a, b) for a, b in pairs)


@dataclass(frozen=True)
class HeldAttention(Held):
    """An attention, whose splits the norm of its output can join, or the linear behind that."""

    core: WebGPUCore
    rope: HeldRope | None
    q: Buffer
    k_cache: Buffer
    v_cache: Buffer
    rows: Rows
    block_tables: Buffer
    out: Buffer  # o itself, or what is left to be joined
    o: Buffer
    heads: int
    head_dim: int
    splits: int
    grid: tuple[int, int, int]
    variant: Mapping[str, object]
    op: RecordedOp | None  # where the program counts it

    counts_itself = True

    def run(self) -> None:
        """See Held."""
        self.attend(None)
        if self.splits > 1:
            rows, columns = self.o.shape
            self.core.dispatch(
                "attention_combine",
                params=[rows, columns // 4],
                buffers=[self.out, self.o],
                grid=(-(-rows * columns // 4 // self.core.device.workgroup_size), 1, 1),
                variant={"splits": self.splits, "quads": self.head_dim // 4},
            )

    @property
    def producers(self) -> int:
        """Sums of a tail."""
        return self.heads * self.splits

    def can(self, tail: Tail | None) -> bool:
        """Whether the kernel can do that too."""
        fits = tail is None or (fits_vectors(tail.lora) and tail.width <= min(_MOST_WIDTH, HALF // self.producers))
        return fits and self._bindings(tail) is not None

    def attend(self, tail: Tail | None) -> None:
        """Record it. The tail must be something that it ``can``."""
        bound = self._bindings(tail)
        assert bound is not None
        buffers, places = bound
        variant = dict(self.variant)
        if tail is not None:
            lora = tail.lora
            variant |= {"width_a": tail.width, "half": lora.a.dtype == "f16", "single": lora.a.shape[0] == 1}
        recording = self.core.recording
        with nullcontext() if recording is None else recording.counted_as(self.op):
            self.core.dispatch(
                "paged_attention_rows",
                params=[self.q.shape[0], self.block_tables.shape[1], self.head_dim**-0.5 * _LOG2_E, *places],
                buffers=buffers,
                grid=self.grid,
                variant=variant | {"tail": tail is not None, "gain": tail is not None and tail.gain is not None},
            )

    def _bindings(self, tail: Tail | None) -> tuple[list[Buffer], list[int]] | None:
        """The kernel's buffers in order, and where things begin in what it has of rows; None: it cannot have them."""
        per_row = [self.rows.positions, self.rows.sequence, self.rows.q_start]
        buffers = [self.k_cache, self.v_cache, self.block_tables, self.out]
        if self.variant["has_q"]:
            buffers.append(self.q)
        if self.rope is not None:
            buffers += [self.rope.qkv, self.rope.table]
        if tail is not None:
            per_row.append(self.rows.slot)
            buffers += [tail.lora.a, sums_scratch(self.core), *([] if tail.gain is None else [tail.gain])]
        found = covering(per_row, buffers)
        if found is None or len(buffers) >= self.core.device.max_bindings:
            return None
        return [found[0], *buffers], [*found[1], 0][:4]


class FewRowsAttention(WebGPUCore):
    """paged_attention for few rows."""

    def attend_few(
        self,
        q: Buffer,
        k_cache: Buffer,
        v_cache: Buffer,
        rows: Rows,
        block_tables: Buffer,
        o: Buffer,
        shape: tuple[int, int, int],
    ) -> bool:
        """See Backend.paged_attention. False when the kernel cannot see all that it needs."""
        heads, kv_heads, head_dim = shape
        num_rows, block_size = q.shape[0], k_cache.shape[2]
        device = self.device
        storage = device.info.limits["max-compute-workgroup-storage-size"]
        form = attention_shape(num_rows, storage, software=device.info.software)
        half_cache = k_cache.dtype == "f16"
        width = 2 if half_cache and head_dim % 8 == 0 else 1
        lanes = head_dim // 4 // width
        shares = max(1, min(form.threads // lanes, max(_SHARES, _LEAST_THREADS // lanes)))
        keys = gcd(form.keys, block_size)
        group = heads // kv_heads
        together = min(form.heads, group)
        splits = device.options.attention_splits
        if splits is None:
            splits = min(form.splits, -(-block_tables.shape[1] * block_size // (shares * keys)))
        out = o if splits == 1 else self.scratch("attention", num_rows * heads * splits * (head_dim + 4))
        if covering([rows.positions, rows.sequence, rows.q_start], [q, k_cache, v_cache, block_tables, out]) is None:
            return False
        rope = self.take(HeldRope, lambda held: form.rope and held.feeds(q, k_cache, v_cache, rows))
        held = HeldAttention(
            core=self,
            rope=rope,
            q=q,
            k_cache=k_cache,
            v_cache=v_cache,
            rows=rows,
            block_tables=block_tables,
            out=out,
            o=o,
            heads=heads,
            head_dim=head_dim,
            splits=splits,
            grid=(num_rows, kv_heads * -(-group // together), splits),
            variant={
                "half_cache": half_cache,
                "width": width,
                "keys": keys,
                "rope": rope is not None,
                "has_q": rope is None or not q.transient,
                "alone": num_rows == 1,
                "head_dim": head_dim,
                "block_size": block_size,
                "group": group,
                "kv_heads": kv_heads,
                "heads": together,
                "splits": splits,
                "shares": shares,
                "team": device.team(shares * lanes),
            },
            op=None if self.recording is None else self.recording.op,
        )
        self.hold(held)
        return True
