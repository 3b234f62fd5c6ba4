"""block_backward: the exact gradient of one block, for its input and all its adapters.

The gradient dx f32 [T, D] of the residual stream is updated in place, from the block's output to its input: each
branch adds to it, and the residual path is the buffer itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritune.backends.base import Backend, Buffer, Rows, TernaryWeight
from tritune.models.bitnet import BitNet
from tritune.models.block_buffers import Adapters, BlockBuffers
from tritune.models.config import ModelConfig
from tritune.models.linears import linear_groups


@dataclass(frozen=True)
class BackwardBuffers:
    """Scratch of backward, one set for all layers."""

    dx: Buffer  # f32 [T, D], the gradient of the residual stream
    dhidden: Buffer  # f32 [T, D], of a normed hidden state
    do: Buffer  # f32 [T, H * d], of the attention's output
    dqkv: Buffer  # f32 [T, (H + 2G) * d]
    delta: Buffer  # f32 [T, H]
    dz: Buffer  # f32 [T, F]
    dgate_up: Buffer  # f32 [T, 2F]
    down_grad: Mapping[str, Buffer]  # f32 [T, P * r] of each group

    @classmethod
    def make(cls, backend: Backend, config: ModelConfig, rows: int, rank: int) -> BackwardBuffers:
        """Buffers for ``rows`` rows and adapters of ``rank``."""
        return cls(
            dx=backend.empty((rows, config.hidden_size)),
            dhidden=backend.empty((rows, config.hidden_size)),
            do=backend.empty((rows, config.q_size)),
            dqkv=backend.empty((rows, config.q_size + 2 * config.kv_size)),
            delta=backend.empty((rows, config.num_heads)),
            dz=backend.empty((rows, config.intermediate_size)),
            dgate_up=backend.empty((rows, 2 * config.intermediate_size)),
            down_grad={g.name: backend.empty((rows, len(g.parts) * rank)) for g in linear_groups(config)},
        )


def block_backward(
    model: BitNet,
    index: int,
    rows: Rows,
    x: Buffer,
    block: BlockBuffers,
    back: BackwardBuffers,
    adapters: Adapters,
    flat_grad: Buffer,
    first: bool,
    renorm: bool = False,
) -> None:
    """Turn back.dx from the gradient of the block's output into that of its input x; add the adapters' gradients (+=).

    first: no layer below needs a gradient, so the one of x is not computed. renorm: the block has not kept the linears'
    normed inputs, which A's gradient needs: compute them again.
    """
    backend, layer, eps = model.backend, model.layers[index], model.config.rms_norm_eps
    activation = model.config.activation

    def linear(group: str, dy: Buffer, inputs: Buffer | None, weight: TernaryWeight, dx: Buffer | None) -> None:
        lora = model.lora(adapters, index, group, block, back.down_grad[group])
        backend.linear_backward(
            dy,
            dy if inputs is None else inputs,
            weight,
            rows,
            dx=dx,
            lora=lora,
            grad=None if lora is None else adapters.grad(flat_grad, index, group),
            dropout=None if lora is None else adapters.dropout(index, group),
        )

    def norm(group: str, of: Buffer, gain: Buffer | None, normed: Buffer | None) -> None:
        if renorm and gain is not None and adapters.adapts(index, group):
            backend.rms_norm_quant(of, gain, eps, normed, None, None)

    assert block.mid is not None and block.lse is not None
    if renorm and adapters.adapts(index, "down"):
        backend.glu_norm_quant(block.gate_up, activation, layer.ffn_sub_norm, eps, block.z, None, None)
    linear("down", back.dx, block.z, layer.down, back.dz)
    backend.glu_backward(block.gate_up, activation, layer.ffn_sub_norm, eps, back.dz, back.dgate_up)
    norm("gate_up", block.mid, layer.post_norm, block.mid_normed)
    linear("gate_up", back.dgate_up, block.mid_normed, layer.gate_up, back.dhidden)
    backend.rms_norm_backward(block.mid, layer.post_norm, eps, back.dhidden, back.dx, accumulate=True)

    o_input = block.o if layer.attn_sub_norm is None else block.o_normed
    norm("o", block.o, layer.attn_sub_norm, block.o_normed)
    linear("o", back.dx, o_input, layer.o, back.do)
    if layer.attn_sub_norm is not None:
        backend.rms_norm_backward(block.o, layer.attn_sub_norm, eps, back.do, back.do)
    backend.causal_attention_backward(block.qkv, block.o, block.lse, back.do, rows, back.dqkv, *model.heads, back.delta)
    backend.rope_backward(back.dqkv, model.rope, rows, *model.heads)
    norm("qkv", x, layer.input_norm, block.normed)
    linear("qkv", back.dqkv, block.normed, layer.qkv, None if first else back.dhidden)
    if not first:
        backend.rms_norm_backward(x, layer.input_norm, eps, back.dhidden, back.dx, accumulate=True)
