"""The names that Hugging Face and GGUF files give to a model's tensors."""

from __future__ import annotations

PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")

HF_PROJECTIONS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
HF_NORMS = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
}
# The first public b1.58 checkpoints name the sub-norms so.
HF_OLD_NORMS = HF_NORMS | {"attn_sub_norm": "self_attn.inner_attn_ln", "ffn_sub_norm": "mlp.ffn_layernorm"}

HF_EMBEDDING = "model.embed_tokens.weight"
HF_HEAD = "lm_head.weight"
HF_FINAL_NORM = "model.norm.weight"

GGUF_PROJECTIONS = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
GGUF_NORMS = {
    "input_norm": "attn_norm",
    "post_attention_norm": "ffn_norm",
    "attn_sub_norm": "attn_sub_norm",
    "ffn_sub_norm": "ffn_sub_norm",
}
GGUF_EMBEDDING = "token_embd.weight"
GGUF_HEAD = "output.weight"
GGUF_FINAL_NORM = "output_norm.weight"

DENSE_MARK = "tritune_dense_export"
"""A field of config.json: the linears are not ternary, and would lose what they hold if they were made so."""


def hf_layer(index: int, module: str) -> str:
    """Full name of a module of a block in a Hugging Face file, without ``.weight``."""
    return f"model.layers.{index}.{module}"


def gguf_layer(index: int, module: str) -> str:
    """Full name of a module of a block in a GGUF file, without ``.weight``."""
    return f"blk.{index}.{module}"
