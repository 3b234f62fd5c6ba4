"""The ternary transformer on a device: its weights, its block forward and backward, written once over the ops.

Serves BitNet b1.58 (sub-norms, relu² or silu) and ternary Llama (no sub-norms). See ops/ for each op's definition.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from tritune.backends.base import Backend, Buffer, DType, LoRA, Rows, Table, TernaryWeight
from tritune.models.block_buffers import Adapters, BlockBuffers, QuantBuffers
from tritune.models.config import ModelConfig
from tritune.models.footprint import weight_bytes
from tritune.models.int8_head import Int8Rows
from tritune.models.weights import FloatTable, LayerWeights, ModelSource
from tritune.ops.rope import rope_table

Activations = Literal["int8", "float"]
Head = Literal["stored", "int8"]
"""How the output head is held: as in the file, or its rows in int8 with a scale each."""
Attend = Callable[[int, BlockBuffers], None]
"""Reads ``qkv`` of the buffers, writes ``o``, for a layer."""


@dataclass(frozen=True)
class Layer:
    """One block's weights on a device."""

    qkv: TernaryWeight
    o: TernaryWeight
    gate_up: TernaryWeight
    down: TernaryWeight
    input_norm: Buffer  # f32 [D]
    post_norm: Buffer  # f32 [D]
    attn_sub_norm: Buffer | None  # f32 [H * d]
    ffn_sub_norm: Buffer | None  # f32 [F]


def gain_buffers(backend: Backend, config: ModelConfig) -> list[dict[str, Buffer]]:
    """Room for the gains of each block, by their names in Layer; all side by side, so that an op can see a norm's and
    the next one's."""
    sub_norms = {"attn_sub_norm": config.q_size, "ffn_sub_norm": config.intermediate_size} if config.sub_norms else {}
    widths = {"input_norm": config.hidden_size, "post_norm": config.hidden_size} | sub_norms
    shapes: list[tuple[tuple[int, ...], DType]] = [((width,), "f32") for width in widths.values()]
    buffers = iter(backend.empty_together(*(shapes * config.num_layers)))
    return [{name: next(buffers) for name in widths} for _ in range(config.num_layers)]


def upload_layer(backend: Backend, weights: LayerWeights, gains: dict[str, Buffer]) -> Layer:
    """Pack and upload one block; ``gains``: its room of ``gain_buffers``."""
    w = weights
    values = {"input_norm": w.input_norm, "post_norm": w.post_attention_norm}
    sub_norms = {"attn_sub_norm": w.attn_sub_norm, "ffn_sub_norm": w.ffn_sub_norm}
    values |= {name: gain for name, gain in sub_norms.items() if gain is not None}
    for name, gain in values.items():
        backend.write(gains[name], gain)
    return Layer(
        qkv=backend.pack_ternary([(m.codes, m.scale) for m in (w.q, w.k, w.v)]),
        o=backend.pack_ternary([(w.o.codes, w.o.scale)]),
        gate_up=backend.pack_ternary([(m.codes, m.scale) for m in (w.gate, w.up)]),
        down=backend.pack_ternary([(w.down.codes, w.down.scale)]),
        input_norm=gains["input_norm"],
        post_norm=gains["post_norm"],
        attn_sub_norm=gains.get("attn_sub_norm"),
        ffn_sub_norm=gains.get("ffn_sub_norm"),
    )


class BitNet:
    """A model's weights on a device, and the ops that make a block of it."""

    def __init__(
        self, backend: Backend, source: ModelSource, activations: Activations = "int8", head: Head = "stored"
    ) -> None:
        """Upload a model, a layer at a time. activations: int8 as it was trained, or float (rounding off, for
        tests). head: int8 halves what a step reads of it, and changes the logits a little."""
        self.backend = backend
        self.config = source.config
        self.floats = activations == "float"
        backend.reserve(weight_bytes(self.config))
        with ThreadPoolExecutor(1) as reader:  # the next layer is decoded while one is packed and uploaded
            coming = reader.submit(source.layer, 0)
            self.layers: list[Layer] = []
            gains = gain_buffers(backend, self.config)
            for index in range(self.config.num_layers):
                weights = coming.result()
                if index + 1 < self.config.num_layers:
                    coming = reader.submit(source.layer, index + 1)
                self.layers.append(upload_layer(backend, weights, gains[index]))
        self.embedding = self._table(source.embedding())
        own = source.head()
        if head == "int8":
            self.head = self._int8_table(source.embedding() if own is None else own)
        else:
            self.head = self.embedding if own is None else self._table(own)
        self.final_norm = backend.upload(source.final_norm())
        config = self.config
        self.rope = backend.upload(rope_table(config.max_positions, config.head_dim, config.rope_theta))

    def _table(self, table: FloatTable) -> Table:
        return self.backend.table(table.rows, table.dtype)

    def _int8_table(self, table: FloatTable) -> Table:
        rows = Int8Rows(table)
        return self.backend.table(rows, "i8", rows.scales)

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads, head size: the last arguments of the attention ops."""
        return self.config.num_heads, self.config.num_kv_heads, self.config.head_dim

    # -- forward ------------------------------------------------------------------------------------------------------
    def block(
        self,
        index: int,
        rows: Rows,
        x: Buffer,
        mid: Buffer,
        out: Buffer | None,
        buffers: BlockBuffers,
        quant: QuantBuffers,
        adapters: Adapters | None,
        attend: Attend,
    ) -> None:
        """Forward of one block: out f32 [T, D] of x; mid is the hidden state between its halves. All three may be one
        buffer. out None: without the last product (down), which backward of the block does not need."""
        backend, layer, eps = self.backend, self.layers[index], self.config.rms_norm_eps

        def linear(group: str, inputs: Buffer | None, raw: Buffer, weight: TernaryWeight, y: Buffer, add: bool) -> None:
            lora = self.lora(adapters, index, group, buffers)
            dropout = None if adapters is None or lora is None else adapters.dropout(index, group)
            codes, scales = self._quant(quant, weight.in_features, x.shape[0])
            source = raw if inputs is None else inputs
            backend.linear(source, codes, scales, weight, y, rows, accumulate=add, lora=lora, dropout=dropout)

        self._norm(x, layer.input_norm, buffers.normed, quant)
        linear("qkv", buffers.normed, x, layer.qkv, buffers.qkv, add=False)
        attend(index, buffers)
        self._norm(buffers.o, layer.attn_sub_norm, buffers.o_normed, quant)
        if mid is not x:
            backend.copy(x, mid)
        linear("o", buffers.o_normed, buffers.o, layer.o, mid, add=True)
        self._norm(mid, layer.post_norm, buffers.mid_normed, quant)
        linear("gate_up", buffers.mid_normed, mid, layer.gate_up, buffers.gate_up, add=False)
        codes, scales = self._quant(quant, self.config.intermediate_size, x.shape[0])
        activation, gain = self.config.activation, layer.ffn_sub_norm
        backend.glu_norm_quant(buffers.gate_up, activation, gain, eps, buffers.z, codes, scales)
        if out is None:
            return
        if out is not mid:
            backend.copy(mid, out)
        linear("down", buffers.z, mid, layer.down, out, add=True)

    def _norm(self, x: Buffer, gain: Buffer | None, normed: Buffer | None, quant: QuantBuffers) -> None:
        codes, scales = self._quant(quant, x.shape[1], x.shape[0])
        if gain is not None or codes is not None:
            self.backend.rms_norm_quant(x, gain, self.config.rms_norm_eps, normed, codes, scales)

    def _quant(self, quant: QuantBuffers, width: int, rows: int) -> tuple[Buffer | None, Buffer | None]:
        if self.floats:
            return None, None
        return quant.codes.view(0, (rows, width)), quant.scales.view(0, (rows,))

    def lora(
        self,
        adapters: Adapters | None,
        index: int,
        group: str,
        buffers: BlockBuffers,
        down_grad: Buffer | None = None,
    ) -> LoRA | None:
        """What the linear of a group needs of the adapters, None where they leave it alone."""
        if adapters is None or not adapters.adapts(index, group):
            return None
        return adapters.lora(index, group, buffers.down[group], down_grad)
