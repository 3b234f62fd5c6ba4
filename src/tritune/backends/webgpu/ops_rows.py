"""Ops on single rows: embedding, norms, GLU, and moving rows to the head and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tritune.backends.base import Buffer, LoRA, Rows, Table
from tritune.errors import DeviceError

from .buffers import WebGPUBuffer, covering, own_buffer, same_memory
from .core import Held, WebGPUCore
from .few_rows_attention import HeldAttention
from .weights import WebGPUTable

ELEMENTWISE_GRID = 1 << 15
"""Most workgroups of a kernel that strides over a flat buffer; each side of a grid may have at least 65535."""


MAX_HELD = 8
"""Vectors of a row that a thread holds at most; longer rows are read again for each pass."""


class HeldRows(Held):
    """An op whose outputs may go into a norm that is recorded next."""

    made: Buffer


@dataclass(frozen=True)
class HeldNorm(Held):
    """A norm and quantisation, which can make LoRA's first factor in the same dispatch."""

    core: WebGPUCore
    kernel: str
    variant: Mapping[str, object]
    columns: int
    eps: float
    x: Buffer
    gain: Buffer | None
    normed: Buffer | None
    codes: Buffer | None
    scales: Buffer | None
    attention: HeldAttention | None = None  # what makes x, to be done before, and its splits joined here
    source: HeldRows | None = None  # what makes x, to be done before

    def __post_init__(self) -> None:
        if (self.codes is None) != (self.scales is None):
            raise DeviceError(f"{self.kernel}: codes and scales are given together or not at all")

    @property
    def held(self) -> int:
        """Vectors of a row that a thread holds; 0 when they are too many."""
        vectors = -(-self.columns // 4 // self.threads)
        return vectors if vectors <= MAX_HELD else 0

    @property
    def threads(self) -> int:
        """Threads of a workgroup: more for long rows, where they are cheap."""
        device = self.core.device
        largest = min(512, device.max_threads)
        long = self.columns // 4 > 4 * device.workgroup_size or self.joins
        doubled = 2 * device.workgroup_size
        return doubled if long and doubled <= largest and not device.info.software else device.workgroup_size

    @property
    def joins(self) -> bool:
        """Whether it joins attention's splits."""
        return self.attention is not None and self.attention.splits > 1

    @property
    def value(self) -> Buffer | None:
        """The buffer that holds what is quantised: the normed rows, or x itself where nothing changes it."""
        plain = self.gain is None and self.kernel == "rms_norm_quant"
        return self.x if plain and self.normed is None else self.normed

    @property
    def coded(self) -> tuple[WebGPUBuffer, list[int]] | None:
        """Codes and scales as one range of memory, and the words where they begin; None when they lie apart."""
        if self.codes is None or self.scales is None:
            return None
        others = [buffer for buffer in (self.x, self.gain, self.normed) if buffer is not None]
        return covering([self.codes, self.scales], others)

    def run(self) -> None:
        """Dispatch without LoRA."""
        self._dispatch([], width=0, groups=1, correction={"down_rows": 0})

    def run_with_lora_down(self, lora: LoRA, rows: Rows, width: int) -> None:
        """Dispatch with down f32 [T, width] = A · normed."""
        down_rows = 8 if self.core.device.info.software else 1 if self.x.shape[0] <= 2 else 2
        correction = {"down_rows": down_rows, "single": lora.a.shape[0] == 1, "half": lora.a.dtype == "f16"}
        self._dispatch([lora.a, rows.slot, lora.down], width, -(-width // down_rows), correction)

    @property
    def activation(self) -> str | None:
        """That of the GLU whose product is normed, if it is one."""
        activation = self.variant.get("activation")
        return None if activation is None else str(activation)

    def _dispatch(self, lora: list[Buffer], width: int, groups: int, correction: Mapping[str, object]) -> None:
        if self.source is not None:
            self.source.run()
        if self.attention is not None:
            self.attention.attend(None)
        rows = self.x.shape[0]
        variant: dict[str, object] = {
            **self.variant,
            "norm": self.gain is not None,
            "keep": self.normed is not None,
            "quant": self.codes is not None,
            "held": self.held,
            "splits": 0,
        }
        if self.held:
            variant |= {
                "lora": bool(lora),
                "threads": self.threads,
                "team": self.core.device.team(self.threads),
                **correction,
            }
        buffers, at = [self.x, self.gain, self.normed, self.codes, self.scales, *lora], [0, 0]
        if self.attention is not None and self.joins and self.coded is not None:
            coded, at = self.coded
            buffers = [self.attention.out, self.gain, self.x, self.normed, coded, *lora]
            variant |= {"splits": self.attention.splits, "quads": self.attention.head_dim // 4}
        self.core.dispatch(
            self.kernel,
            params=[rows, self.columns // 4, self.eps, width, groups, *at],
            buffers=[buffer for buffer in buffers if buffer is not None],
            grid=(groups, rows, 1) if self.held else (rows, 1, 1),
            variant=variant,
        )


class RowOps(WebGPUCore):
    """See Backend for each op's contract, kernels/<op>.wgsl for its layout and work split."""

    def zero(self, buffer: Buffer) -> None:
        """See Backend.zero."""
        words = own_buffer(buffer).nbytes // 4
        self.dispatch("zero", params=[words], buffers=[buffer], grid=self.elementwise_grid(words))

    def embed(self, tokens: Buffer, table: Table, x: Buffer) -> None:
        """See Backend.embed. Ids outside of the table give rows of zeros."""
        if not isinstance(table, WebGPUTable):
            raise DeviceError(f"embed: a table of another backend ({type(table).__name__}) was given to WebGPU")
        words = table.columns if table.dtype == "f32" else table.columns // 2
        for shard in table.shards:
            self.dispatch(
                "embed",
                params=[tokens.size, words, shard.first_row, shard.rows, table.rows],
                buffers=[tokens, shard.buffer, x],
                grid=(tokens.size, 1, 1),
                variant={"format": table.dtype},
            )

    def rms_norm_quant(
        self,
        x: Buffer,
        gain: Buffer | None,
        eps: float,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> None:
        """See Backend.rms_norm_quant."""
        source = self.take(HeldRows, lambda linear: same_memory(linear.made, x))
        norm = HeldNorm(
            self, "rms_norm_quant", {}, x.shape[-1], float(eps), x, gain, normed, codes, scales, source=source
        )
        if norm.held and norm.coded is not None:
            norm = replace(norm, attention=self.take(HeldAttention, lambda attention: same_memory(attention.o, x)))
        self.hold(norm)

    def glu_norm_quant(
        self,
        gate_up: Buffer,
        activation: str,
        gain: Buffer | None,
        eps: float,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> None:
        """See Backend.glu_norm_quant."""
        variant: dict[str, object] = {"activation": activation}
        columns = gate_up.shape[-1] // 2
        source = self.take(HeldRows, lambda linear: same_memory(linear.made, gate_up))
        name, eps = "glu_norm_quant", float(eps)
        self.hold(HeldNorm(self, name, variant, columns, eps, gate_up, gain, normed, codes, scales, source=source))

    def rms_norm_backward(
        self, x: Buffer, gain: Buffer, eps: float, dy: Buffer, dx: Buffer, accumulate: bool = False
    ) -> None:
        """See Backend.rms_norm_backward."""
        in_place = same_memory(dx, dy)
        if in_place and accumulate:
            raise DeviceError("rms_norm_backward: dx may not be dy when the gradient is added to it")
        rows, columns = x.shape
        self.dispatch(
            "rms_norm_backward",
            params=[rows, columns // 4, float(eps)],
            buffers=[x, gain, dy] if in_place else [x, gain, dy, dx],
            grid=(rows, 1, 1),
            variant={"in_place": in_place, "accumulate": accumulate},
        )

    def glu_backward(
        self, gate_up: Buffer, activation: str, gain: Buffer | None, eps: float, dy: Buffer, dgate_up: Buffer
    ) -> None:
        """See Backend.glu_backward."""
        in_place = same_memory(gate_up, dgate_up)
        rows, columns = dy.shape
        buffers = [gate_up, gain, dy, None if in_place else dgate_up]
        self.dispatch(
            "glu_backward",
            params=[rows, columns // 4, float(eps)],
            buffers=[buffer for buffer in buffers if buffer is not None],
            grid=(rows, 1, 1),
            variant={"activation": activation, "norm": gain is not None, "in_place": in_place},
        )

    def gather_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        """See Backend.gather_rows."""
        self._move_rows("gather_rows", x, index, out, x.shape[0])

    def scatter_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        """See Backend.scatter_rows."""
        self.zero(out)
        self._move_rows("scatter_rows", x, index, out, out.shape[0])

    def next_rows(self, drawn: Buffer, rows: Rows) -> None:
        """See Backend.next_rows."""
        count = min(drawn.size, rows.tokens.size)
        grid = (-(-count // self.device.workgroup_size), 1, 1)
        self.dispatch("next_rows", params=[count], buffers=[drawn, rows.tokens, rows.positions], grid=grid)

    def _move_rows(self, kernel: str, x: Buffer, index: Buffer, out: Buffer, num_rows: int) -> None:
        params = [index.size, num_rows, x.shape[-1] // 4]
        self.dispatch(kernel, params=params, buffers=[x, index, out], grid=(index.size, 1, 1))

    def elementwise_grid(self, count: int) -> tuple[int, int, int]:
        """The grid of a kernel that strides over ``count`` elements, one a thread at a time."""
        return min(-(-count // self.device.workgroup_size), ELEMENTWISE_GRID), 1, 1
