"""The student: BitNet b1.58 as transformers' BitNetForCausalLM computes it, trained with ternary weights and int8
activations; gradients go straight through both roundings (Bengio et al. 2013, Wang et al. 2023).

Needs torch; the rest of the recipe needs numpy and tokenizers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are those of tritune-stories-45m."""

    vocab: int = 16384
    hidden: int = 512
    ffn: int = 1536
    layers: int = 12
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    theta: float = 10000.0
    eps: float = 1e-5
    context: int = 1024


TINY = Shape(hidden=128, ffn=256, layers=2, heads=4, kv_heads=2, head_dim=32)
"""To try the scripts on a CPU."""

IGNORED = -100
"""A label that is not trained on."""

MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "g": "mlp.gate_proj",
    "u": "mlp.up_proj",
    "d": "mlp.down_proj",
}
NORMS = {
    "n1": "input_layernorm",
    "na": "self_attn.attn_sub_norm",
    "n2": "post_attention_layernorm",
    "nf": "mlp.ffn_sub_norm",
}


def int8_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers in [-128, 127] in x's dtype, by each token's largest magnitude, and their scale [..., 1] (float32)."""
    wide = x.float()
    scale = wide.detach().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127.0
    scaled = wide / scale
    rounded = scaled.detach().round().clamp(-128, 127)
    return (scaled + (rounded - scaled).detach()).to(x.dtype), scale


def ternary(w: Tensor) -> tuple[Tensor, Tensor]:
    """Codes -1, 0, 1 of the float32 masters [layers, out, in], and each layer's scale, the mean of abs(w)."""
    scale = w.detach().abs().mean((1, 2)).clamp(min=1e-5)
    scaled = w / scale[:, None, None]
    codes = scaled.detach().round().clamp(-1, 1)
    return scaled + (codes - scaled).detach(), scale


class Student(nn.Module):
    """Every kind of matrix is one parameter [layers, out, in], so that the optimiser works on few large tensors."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = s = shape
        std = 0.02
        deep = std / math.sqrt(2 * s.layers)  # what is added to the residual stream starts small

        def matrix(rows: int, columns: int, deviation: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(s.layers, rows, columns) * deviation)

        self.q = matrix(s.heads * s.head_dim, s.hidden, std)
        self.k = matrix(s.kv_heads * s.head_dim, s.hidden, std)
        self.v = matrix(s.kv_heads * s.head_dim, s.hidden, std)
        self.o = matrix(s.hidden, s.heads * s.head_dim, deep)
        self.g = matrix(s.ffn, s.hidden, std)
        self.u = matrix(s.ffn, s.hidden, std)
        self.d = matrix(s.hidden, s.ffn, deep)
        self.emb = nn.Parameter(torch.randn(s.vocab, s.hidden) * std)
        for name, width in (("n1", s.hidden), ("na", s.heads * s.head_dim), ("n2", s.hidden), ("nf", s.ffn)):
            setattr(self, name, nn.Parameter(torch.ones(s.layers, width)))
        self.fn = nn.Parameter(torch.ones(s.hidden))
        frequencies = s.theta ** (-torch.arange(0, s.head_dim, 2).float() / s.head_dim)
        angles = torch.arange(s.context).float()[:, None] * frequencies[None]
        self.register_buffer("cos", torch.cat([angles.cos(), angles.cos()], -1), persistent=False)
        self.register_buffer("sin", torch.cat([angles.sin(), angles.sin()], -1), persistent=False)

    def norm(self, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.eps)
        return wide.to(dtype) * weight.to(dtype)

    def forward(self, ids: Tensor, labels: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Logits [batch, tokens, vocab] of ids [batch, tokens]; with labels, their mean loss in nats."""
        s = self.shape
        batch, tokens = ids.shape
        x = F.embedding(ids, self.emb.to(dtype))
        weights = self._weights(dtype)
        cos = self.cos[:tokens].to(dtype)[None, :, None]
        sin = self.sin[:tokens].to(dtype)[None, :, None]

        def rope(z: Tensor) -> Tensor:
            half = s.head_dim // 2
            return z * cos + torch.cat([-z[..., half:], z[..., :half]], -1) * sin

        def linear(z: Tensor, name: str, layer: int) -> Tensor:
            codes, scales = weights[name]
            integers, scale = int8_activations(z)
            return (F.linear(integers, codes[layer]) * (scale * scales[layer])).to(dtype)

        def per_head(z: Tensor) -> Tensor:
            z = z.transpose(1, 2)[:, :, None]
            z = z.expand(batch, s.kv_heads, s.heads // s.kv_heads, tokens, s.head_dim)
            return z.reshape(batch, s.heads, tokens, s.head_dim)

        wide, narrow = s.heads * s.head_dim, s.kv_heads * s.head_dim
        for layer in range(s.layers):
            y = linear(self.norm(x, self.n1[layer], dtype), "qkv", layer)
            q, k, v = y.split([wide, narrow, narrow], -1)
            q = rope(q.view(batch, tokens, s.heads, s.head_dim)).transpose(1, 2)
            k = per_head(rope(k.view(batch, tokens, s.kv_heads, s.head_dim)))
            v = per_head(v.view(batch, tokens, s.kv_heads, s.head_dim))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, wide)
            x = x + linear(self.norm(a, self.na[layer], dtype), "o", layer)
            y = linear(self.norm(x, self.n2[layer], dtype), "gu", layer)
            gate, up = y.split([s.ffn, s.ffn], -1)
            x = x + linear(self.norm(F.relu(gate).square() * up, self.nf[layer], dtype), "d", layer)
        logits = F.linear(self.norm(x, self.fn, dtype), self.emb.to(dtype))
        if labels is None:
            return logits
        return F.cross_entropy(logits.float().view(-1, s.vocab), labels.reshape(-1), ignore_index=IGNORED)

    def _weights(self, dtype: torch.dtype) -> dict[str, tuple[tuple[Tensor, ...], Tensor]]:
        """Codes of each layer and scales [layers, out]; q, k, v are one matrix, and so are gate and up."""
        groups = {"qkv": (self.q, self.k, self.v), "o": (self.o,), "gu": (self.g, self.u), "d": (self.d,)}
        weights = dict[str, tuple[tuple[Tensor, ...], Tensor]]()
        for name, members in groups.items():
            parts = [ternary(w) for w in members]
            scales = [scale[:, None].expand(-1, codes.shape[1]) for codes, scale in parts]
            weights[name] = torch.cat([codes for codes, _ in parts], 1).to(dtype).unbind(0), torch.cat(scales, 1)
        return weights


def pack(codes: Tensor) -> Tensor:
    """Codes [rows, columns] (int8) as transformers packs them: rows r, r + R, r + 2R and r + 3R share packed row r."""
    shifted = (codes + 1).to(torch.uint8)
    rows = shifted.shape[0] // 4
    packed = torch.zeros(rows, shifted.shape[1], dtype=torch.uint8)
    for i in range(4):
        packed |= shifted[i * rows : (i + 1) * rows] << (2 * i)
    return packed


@torch.no_grad()
def export(model: Student) -> dict[str, Tensor]:
    """The tensors of model.safetensors: packed matrices with float32 scales, the rest in bfloat16."""

    def narrow(tensor: Tensor) -> Tensor:
        return tensor.detach().to(torch.bfloat16).cpu().contiguous()

    tensors = {"model.embed_tokens.weight": narrow(model.emb), "model.norm.weight": narrow(model.fn)}
    for name, full in MATRICES.items():
        codes, scales = ternary(getattr(model, name).detach())
        codes, scales = codes.round().to(torch.int8).cpu(), scales.cpu()
        for layer in range(model.shape.layers):
            tensors[f"model.layers.{layer}.{full}.weight"] = pack(codes[layer])
            tensors[f"model.layers.{layer}.{full}.weight_scale"] = scales[layer : layer + 1].clone().float()
    for name, full in NORMS.items():
        for layer in range(model.shape.layers):
            tensors[f"model.layers.{layer}.{full}.weight"] = narrow(getattr(model, name)[layer])
    return tensors


def hf_config(shape: Shape) -> dict[str, Any]:
    """config.json, for transformers and for tritune."""
    return {
        "architectures": ["BitNetForCausalLM"],
        "model_type": "bitnet",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "relu2",
        "max_position_embeddings": shape.context,
        "initializer_range": 0.02,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "rope_parameters": {"rope_theta": shape.theta, "rope_type": "default"},
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "offline",
            "modules_to_not_convert": ["lm_head"],
            "use_rms_norm": False,
            "rms_norm_eps": shape.eps,
        },
    }
