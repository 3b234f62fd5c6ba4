"""The linear of at most FEW_ROWS rows, as in decoding: how its kernel splits the work, and what it does beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritune.backends.base import Buffer, LoRA, Rows

from .buffers import covering, same_memory
from .choices import CANDIDATES, Choice, head_class, linear_class
from .one_row import OneRowOps
from .ops_gemm import ceil_div
from .ops_rows import HeldNorm
from .weights import WebGPUTable, WebGPUTernary, part_ends, part_params

FEW_ROWS = 16
"""Up to this many rows a kernel reads the matrix once for all of them; beyond, tiles are worth it."""
MAX_STAGED = 128
"""Units of a row that are kept in workgroup memory at most: 8 KiB."""


@dataclass(frozen=True)
class GemvShape:
    """How linear_gemv.wgsl splits its work: see there."""

    threads: int
    lanes: int
    tile: int
    unroll: int
    rows: int = 16
    with_lora: bool = True

    @property
    def outputs(self) -> int:
        """Outputs of a workgroup."""
        return self.threads // self.lanes * self.tile

    def variant(self, units: int) -> dict[str, object]:
        """The template's variables for rows of ``units`` units."""
        whole = units % (self.lanes * self.unroll) == 0
        return {"threads": self.threads, "lanes": self.lanes, "tile": self.tile, "unroll": self.unroll, "whole": whole}


def gemv_shape(rows: int, outputs: int, units: int, choices: Mapping[str, Choice], *, software: bool) -> GemvShape:
    """The shape for ``rows`` rows and a matrix of ``outputs`` rows of ``units`` loads each; choices: see choices.py."""
    name = linear_class(rows, outputs, units)
    with_lora = rows <= 2 or not software  # which is quicker with a thread an output than with lanes that share one
    if software and name not in choices:
        return GemvShape(64, 16, 1, 1, with_lora=with_lora)
    threads, lanes, tile, unroll, block = choices.get(name, CANDIDATES[name][0])
    return GemvShape(threads, lanes, tile, min(ceil_div(units, lanes), unroll), block, with_lora)


def head_shape(rows: int, choices: Mapping[str, Choice], *, software: bool) -> GemvShape:
    """The shape of logits_gemv.wgsl for ``rows`` rows; choices: see choices.py."""
    name = head_class(rows)
    if software and name not in choices:
        return GemvShape(64, 16, 1, 1)
    threads, lanes, tile, unroll = choices.get(name, CANDIDATES[name][0])
    return GemvShape(threads, lanes, tile, unroll)


class FewRowsOps(OneRowOps):
    """linear and logits for few rows."""

    def logits_few(self, x: Buffer, table: WebGPUTable, out: Buffer) -> None:
        """See Backend.logits: a dispatch for each shard of the table."""
        rows = x.shape[0]
        shape = head_shape(rows, self.device.choices, software=self.device.info.software)
        wide = table.dtype != "f32" and table.columns % 8 == 0
        units = table.columns // (8 if wide else 4)
        variant = shape.variant(units) | {"format": table.dtype, "rows": rows_variant(rows), "wide": wide}
        for shard in table.shards:
            self.dispatch(
                "logits_gemv",
                params=(rows, shard.rows, table.columns, table.rows, shard.first_row),
                buffers=[x, shard.buffer, out],
                grid=(ceil_div(shard.rows, shape.outputs), 1, 1),
                variant=variant,
            )

    def linear_few(
        self,
        x: Buffer,
        codes: Buffer | None,
        scales: Buffer | None,
        w: WebGPUTernary,
        y: Buffer,
        rows: Rows,
        accumulate: bool,
        lora: LoRA | None,
    ) -> None:
        """The ternary product and LoRA's second factor in one dispatch; LoRA's first factor was made before."""
        tokens = y.shape[0]
        exact = codes is not None
        wide = w.in_features % 64 == 0
        units = w.in_features // 64 if wide else ceil_div(w.in_features, 16)
        software = self.device.info.software
        shape = gemv_shape(tokens, w.out_features, units, self.device.choices, software=software)
        block = min(rows_variant(tokens), shape.rows)
        buffers = [x if codes is None else codes, w.words, y]
        if scales is not None:
            buffers.append(scales)
        fused = lora is not None
        at, correction = [0, 0], dict[str, object]()
        if lora is not None:
            per_row = covering([rows.slot, rows.multiplier], [*buffers, lora.down, lora.b, lora.scale])
            fused = per_row is not None and shape.with_lora
            if per_row is not None and fused:
                at = per_row[1]
                buffers += [lora.down, lora.b, per_row[0], lora.scale]
                correction = _correction(lora, shape.lanes)
        params = (tokens, w.out_features, w.in_features, *part_params(w), *at)
        self.dispatch(
            "linear_gemv",
            params=params,
            buffers=buffers,
            grid=(ceil_div(w.out_features, shape.outputs), ceil_div(tokens, block), 1),
            variant={
                **shape.variant(units),
                "exact": exact,
                "rows": block,
                "staged": units if exact and wide and block == 1 and units <= MAX_STAGED else 0,
                "wide": wide,
                "accumulate": accumulate,
                "lora": fused,
                **correction,
            },
        )
        if lora is not None and not fused:
            self.dispatch(
                "lora_up_rows",
                params=(tokens, w.out_features, len(w.parts) * lora.rank, lora.rank, *part_ends(w.parts)),
                buffers=[lora.down, lora.b, rows.slot, rows.multiplier, lora.scale, y],
                grid=(ceil_div(w.out_features, 64), tokens, 1),
                variant={"half": lora.b.dtype == "f16"},
            )

    def take_norm(self, x: Buffer, codes: Buffer | None) -> HeldNorm | None:
        """The norm that has just been recorded, if it made ``x`` (and ``codes`` of it) and can do more."""

        def made_these(norm: HeldNorm) -> bool:
            made = norm.value
            same_codes = codes is None or (norm.codes is not None and same_memory(codes, norm.codes))
            return norm.held > 0 and made is not None and same_memory(made, x) and same_codes

        return self.take(HeldNorm, made_these)


def rows_variant(rows: int) -> int:
    """The smallest power of two that holds ``rows``."""
    return 1 << (max(rows, 1) - 1).bit_length()


def _correction(lora: LoRA, lanes: int) -> dict[str, object]:
    """The variables of linear_gemv.wgsl with LoRA's second factor."""
    aligned = lora.rank % 4 == 0
    return {
        "rank": lora.rank,
        "aligned": aligned,
        "half": lora.b.dtype == "f16",
        "single": lora.a.shape[0] == 1,
        "share_lanes": min(lanes, rows_variant(lora.rank // 4 if aligned else lora.rank)),
    }
