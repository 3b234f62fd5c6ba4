"""A recorded linear of one row, which waits for what follows it: see kernels/linear_row.wgsl and one_row.py."""

from __future__ import annotations

from dataclasses import dataclass

from tritune.backends.base import Buffer, LoRA, Rows

from .buffers import WebGPUBuffer, covering
from .core import WebGPUCore
from .ops_rows import HeldRows
from .tails import HALF, Tail, fits_vectors, sums_scratch
from .weights import WebGPUTernary, part_ends

_LONG_ROW = 4096


@dataclass(frozen=True)
class RowShape:
    """How linear_row.wgsl splits its work: see there."""

    threads: int
    lanes: int
    team: int

    @property
    def outputs(self) -> int:
        """Outputs of a workgroup."""
        return self.threads // self.lanes


def row_shape(columns: int, most_threads: int, subgroup: int) -> RowShape:
    """The shape for rows of ``columns``, with workgroups of ``most_threads`` and subgroups of ``subgroup`` threads (0:
    none); measured on an H200."""
    lanes = 16 if columns > _LONG_ROW else 8
    if subgroup == 0 or subgroup % lanes:
        return RowShape(min(512 if columns > _LONG_ROW else 256, most_threads), lanes, 0)
    threads = min(384 if columns > _LONG_ROW else 256, most_threads)
    return RowShape(threads // subgroup * subgroup, lanes, subgroup)


@dataclass(frozen=True)
class Front:
    """The input of the linear: codes and scales as one range of words, or the row that is to be normed."""

    x: WebGPUBuffer
    scale_at: int | None  # where the codes' scale is; None: x is the row f32 [K]
    gain: Buffer | None = None  # None: quantised as it is
    eps: float = 0.0
    splits: int = 1  # of the attention whose sums x is
    head_dim: int = 4


@dataclass(frozen=True)
class Glu:
    """What a linear of gate and up makes of them."""

    activation: str
    z: Buffer


@dataclass(frozen=True)
class HeldLinear(HeldRows):
    """A linear of one row, which waits for what follows it."""

    core: WebGPUCore
    weight: WebGPUTernary
    made: Buffer
    rows: Rows
    accumulate: bool
    lora: LoRA | None
    front: Front
    sums_at: int = 0  # where LoRA's first factor is in the scratch
    producers: int = 1  # over how many sums

    def run(self) -> None:
        """See Held."""
        self.dispatch(None, None)

    @property
    def shape(self) -> RowShape:
        """How its work is split."""
        device = self.core.device
        return row_shape(
            self.weight.in_features, device.max_threads, device.smallest_subgroup if device.subgroups else 0
        )

    def outputs(self, glu: bool) -> int:
        """Outputs, of which a GLU makes one of two."""
        return self.weight.out_features // (2 if glu else 1)

    def workgroups(self, glu: bool) -> int:
        """Workgroups, each of which makes one sum of a tail."""
        return -(-self.outputs(glu) // self.shape.outputs)

    @property
    def tail_at(self) -> int:
        """Where a tail's sums go in the scratch."""
        return HALF - self.sums_at

    def makes_glu(self) -> bool:
        """Whether gate and up are all that it makes, and nobody else wants them."""
        w = self.weight
        return len(w.parts) == 2 and w.parts[0] == w.parts[1] and not self.accumulate and self.made.transient

    def can(self, tail: Tail | None, glu: Glu | None) -> bool:
        """Whether a kernel can do all of this at once."""
        if tail is not None:
            sums = tail.width * self.workgroups(glu is not None)
            if self.outputs(glu is not None) % 4 or sums > HALF or tail.width > 4 * self.shape.threads:
                return False
            if not fits_vectors(tail.lora):
                return False
            if self.lora is not None and self.lora.a.dtype != tail.lora.a.dtype:
                return False
        return self._fits(0 if tail is None else tail.width, glu) and self._bindings(tail, glu) is not None

    def _apart(self, tail: Tail | None) -> bool:
        """Whether both factors are bound on their own. How far they are from each other differs from layer to layer."""
        return self.lora is not None and tail is not None and self.core.device.max_bindings > 8

    def _span(self, glu: Glu | None) -> int:
        """How many parts may meet in a workgroup."""
        whole = all(end % self.shape.outputs == 0 for end in part_ends(self.weight.parts)[: len(self.weight.parts) - 1])
        return 2 if glu is not None else 1 if whole else len(self.weight.parts)

    def _fits(self, next_width: int, glu: Glu | None) -> bool:
        """Whether the kernel's arrays fit the workgroup memory, and each number of LoRA's first factor has a thread."""
        shape = self.shape
        numbers = 0 if self.lora is None else self._span(glu) * self.lora.rank
        heads = self.weight.in_features // self.front.head_dim if self.front.splits > 1 else 0
        if max(numbers, heads) > shape.threads:
            return False
        words = self.weight.in_features // 4 + 6 * shape.threads + shape.outputs * (2 + next_width // 4) + 128
        words += (
            numbers + heads * self.front.splits + shape.threads + (0 if shape.team else self.weight.in_features // 4)
        )
        return 4 * words <= self.core.device.info.limits["max-compute-workgroup-storage-size"]

    def dispatch(self, tail: Tail | None, glu: Glu | None) -> None:
        """Record it. What it is to do besides must be something that it ``can``."""
        bound = self._bindings(tail, glu)
        assert bound is not None
        buffers, at = bound
        w, lora, front, shape = self.weight, self.lora, self.front, self.shape
        of_adapters = lora or (None if tail is None else tail.lora)
        params = (w.out_features, w.in_features, front.eps, *part_ends(w.parts), len(w.parts), at["row_scales"])
        places = (at["slot"], at["multiplier"], front.scale_at or 0, at["gain"], at["next_gain"], at["b"], at["a"])
        variant: dict[str, object] = {
            "threads": shape.threads,
            "lanes": shape.lanes,
            "team": shape.team,
            "units": w.in_features // 64,
            "front": "norm" if front.scale_at is None else "codes",
            "splits": front.splits,
            "quads": front.head_dim // 4,
            "gain": front.gain is not None,
            "held": -(-w.in_features // 4 // shape.threads),
            "accumulate": self.accumulate,
            "lora": lora is not None,
            "rank": 0 if lora is None else lora.rank,
            "producers": self.producers,
            "span": self._span(glu),
            "half": of_adapters is not None and of_adapters.a.dtype == "f16",
            "single": of_adapters is not None and of_adapters.a.shape[0] == 1,
            "glu": glu is not None,
            "activation": "" if glu is None else glu.activation,
            "apart": self._apart(tail),
            "tail": tail is not None,
            "next_gain": tail is not None and tail.gain is not None,
            "next_width": 0 if tail is None else tail.width,
        }
        self.core.dispatch(
            "linear_row",
            params=(*params, *places, self.sums_at, self.tail_at),
            buffers=buffers,
            grid=(self.workgroups(glu is not None), 1, 1),
            variant=variant,
        )

    def _bindings(self, tail: Tail | None, glu: Glu | None) -> tuple[list[Buffer], dict[str, int]] | None:
        """The kernel's buffers in order, and where things begin in them, as it counts; None: it cannot have them."""
        lora, front = self.lora, self.front
        at: dict[str, int] = dict.fromkeys(("slot", "multiplier", "gain", "next_gain", "b", "a"), 0)
        made = self.made if glu is None else glu.z
        weight = covering([self.weight.words, self.weight.row_scales], [front.x, made])
        if weight is None or weight[1][0] or weight[0].nbytes > self.core.device.max_binding:
            return None
        at["row_scales"] = weight[1][1] // 4
        alone: list[Buffer] = [front.x, weight[0], made]
        behind: list[Buffer] = []
        if lora is not None or tail is not None:
            per_row = covering([self.rows.slot, self.rows.multiplier], alone)
            if per_row is None:
                return None
            behind = [sums_scratch(self.core), per_row[0]]
            at["slot"], at["multiplier"] = per_row[1]
        if lora is not None:
            behind.append(lora.scale)
        gains = {"gain": front.gain, "next_gain": None if tail is None else tail.gain}
        b, a = {"b": None if lora is None else lora.b}, {"a": None if tail is None else tail.lora.a}
        together: list[Buffer] = []
        for parts in (gains, b, a) if self._apart(tail) else (gains, b | a):
            here = {name: buffer for name, buffer in parts.items() if buffer is not None}
            if not here:
                continue
            found = covering(list(here.values()), [*alone, *behind])
            if found is None or found[0].nbytes > self.core.device.max_binding:
                return None
            together.append(found[0])
            words = 2 if next(iter(here.values())).dtype == "f16" else 4  # of a vector
            if any(word % words for word in found[1]):
                return None
            at.update({name: word // words for name, word in zip(here, found[1], strict=True)})
        return [*alone, *together, *behind], at
