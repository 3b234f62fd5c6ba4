"""What a ternary model looks like (ModelConfig) and how it wants to be sampled (GenerationDefaults)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from tritune.errors import ModelFileError
from tritune.formats.fields import Fields, short

Activation = Literal["relu2", "silu"]

ACTIVATIONS: dict[str, Activation] = {"relu2": "relu2", "silu": "silu", "swish": "silu"}

# Values that a config.json may leave out, as transformers' configuration classes fill them in.
HF_DEFAULTS: dict[str, dict[str, Any]] = {
    "bitnet": {"hidden_act": "relu2", "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "llama": {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0},
}

# What a GGUF architecture name says about the feed-forward block; the file has no key for it.
GGUF_ACTIVATIONS: dict[str, Activation] = {
    "bitnet-b1.58": "relu2",
    "bitnet-25": "relu2",
    "bitnet": "silu",
    "llama": "silu",
}

MAX_POSITIONS = 1 << 24
MAX_SIZE = 1 << 24  # of any one dimension of a model
MAX_LAYERS = 4096


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and numbers of a model. Raises ModelFileError when they do not fit together."""

    model_type: str  # "bitnet" or "llama", or the architecture of a GGUF file
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    activation: Activation
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    tie_word_embeddings: bool
    sub_norms: bool  # an RMS norm before o_proj and before down_proj
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    name: str = ""  # for people, and for an adapter's base_model_name_or_path

    def __post_init__(self) -> None:
        where = f"model {self.name}" if self.name else "model"
        if self.head_dim % 2:
            raise ModelFileError(f"{where}: head_dim is {self.head_dim}; expected an even number (rotary pairs)")
        sizes = {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "heads * head_dim": self.q_size,
            "kv_heads * head_dim": self.kv_size,
        }
        for label, value in sizes.items():
            if value < 1 or value % 4:
                raise ModelFileError(f"{where}: {label} is {value}; expected a positive multiple of 4")
        for label in ("vocab_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "max_positions"):
            if getattr(self, label) < 1:
                raise ModelFileError(f"{where}: {label} is {getattr(self, label)}; expected a positive number")
        if self.num_heads % self.num_kv_heads:
            raise ModelFileError(
                f"{where}: {self.num_heads} attention heads cannot share {self.num_kv_heads} key/value heads evenly"
            )

    @property
    def q_size(self) -> int:
        """Outputs of q_proj, inputs of o_proj."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Outputs of k_proj and of v_proj."""
        return self.num_kv_heads * self.head_dim

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], *, sub_norms: bool | None = None, name: str = "", where: str = "config.json"
    ) -> ModelConfig:
        """Read the fields of a config.json.

        ``sub_norms`` says whether the file's tensors have them (None: by the model type). Raises ModelFileError, naming
        the field, for anything that this library would compute differently from what the file asks for.
        """
        fields = Fields(config, where)
        model_type = fields.text("model_type")
        if model_type not in HF_DEFAULTS:
            raise fields.error("model_type", "one of " + ", ".join(HF_DEFAULTS))
        defaults = HF_DEFAULTS[model_type]
        for key in ("attention_bias", "mlp_bias"):
            if fields.boolean(key, False):
                raise fields.error(key, "false (linears with a bias are not supported)")
        _check_quantization(fields)
        hidden = fields.integer("hidden_size", maximum=MAX_SIZE)
        heads = fields.integer("num_attention_heads", maximum=MAX_SIZE)
        if "head_dim" not in fields and hidden % heads:
            raise fields.error("hidden_size", f"a multiple of num_attention_heads ({heads}), or a head_dim")
        activation = fields.text("hidden_act", defaults["hidden_act"])
        if activation not in ACTIVATIONS:
            raise fields.error("hidden_act", "one of " + ", ".join(ACTIVATIONS))
        return cls(
            model_type=model_type,
            vocab_size=fields.integer("vocab_size", maximum=MAX_SIZE),
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size", maximum=MAX_SIZE),
            num_layers=fields.integer("num_hidden_layers", maximum=MAX_LAYERS),
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", heads, maximum=MAX_SIZE),
            head_dim=fields.integer("head_dim", hidden // heads, maximum=MAX_SIZE),
            activation=ACTIVATIONS[activation],
            rms_norm_eps=fields.number("rms_norm_eps", defaults["rms_norm_eps"], exclusive=True),
            rope_theta=_hf_rope_theta(fields, defaults["rope_theta"]),
            max_positions=fields.integer("max_position_embeddings", 2048, maximum=MAX_POSITIONS),
            tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
            sub_norms=model_type == "bitnet" if sub_norms is None else sub_norms,
            bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
            eos_token_ids=fields.token_ids("eos_token_id"),
            name=name,
        )

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], *, sub_norms: bool, tied: bool, vocab_size: int, name: str, where: str
    ) -> ModelConfig:
        """Read the keys of a GGUF file.

        What only its tensors tell comes from the caller: whether there are sub-norms and a head of its own, and the
        rows of the embedding. Raises ModelFileError, naming the key.
        """
        fields = Fields(metadata, where)
        arch = fields.text("general.architecture")
        if arch not in GGUF_ACTIVATIONS:
            raise fields.error("general.architecture", "one of " + ", ".join(GGUF_ACTIVATIONS))
        _check_gguf_rope(fields, arch)
        hidden = fields.integer(f"{arch}.embedding_length", maximum=MAX_SIZE)
        heads = fields.integer(f"{arch}.attention.head_count", maximum=MAX_SIZE)
        rotated = fields.integer(f"{arch}.rope.dimension_count", hidden // heads, maximum=MAX_SIZE)
        head_dim = fields.integer(f"{arch}.attention.key_length", rotated, maximum=MAX_SIZE)
        if rotated != head_dim:
            raise fields.error(f"{arch}.rope.dimension_count", f"the head size {head_dim} (all of a head is rotated)")
        if fields.integer(f"{arch}.attention.value_length", head_dim, maximum=MAX_SIZE) != head_dim:
            raise fields.error(f"{arch}.attention.value_length", f"the key length {head_dim}")
        if fields.integer(f"{arch}.vocab_size", vocab_size, maximum=MAX_SIZE) != vocab_size:
            raise fields.error(f"{arch}.vocab_size", f"the {vocab_size} rows of token_embd.weight")
        eos = fields.token_ids("tokenizer.ggml.eos_token_id") + fields.token_ids("tokenizer.ggml.eot_token_id")
        return cls(
            model_type=arch,
            vocab_size=vocab_size,
            hidden_size=hidden,
            intermediate_size=fields.integer(f"{arch}.feed_forward_length", maximum=MAX_SIZE),
            num_layers=fields.integer(f"{arch}.block_count", maximum=MAX_LAYERS),
            num_heads=heads,
            num_kv_heads=fields.integer(f"{arch}.attention.head_count_kv", heads, maximum=MAX_SIZE),
            head_dim=head_dim,
            activation=GGUF_ACTIVATIONS[arch],
            rms_norm_eps=fields.number(f"{arch}.attention.layer_norm_rms_epsilon", exclusive=True),
            rope_theta=fields.number(f"{arch}.rope.freq_base", 10000.0, exclusive=True),
            max_positions=fields.integer(f"{arch}.context_length", maximum=MAX_POSITIONS),
            tie_word_embeddings=tied,
            sub_norms=sub_norms,
            bos_token_id=next(iter(fields.token_ids("tokenizer.ggml.bos_token_id")), None),
            eos_token_ids=tuple(dict.fromkeys(eos)),
            name=name,
        )


@dataclass(frozen=True)
class GenerationDefaults:
    """How the model's authors sample it; None where they do not say."""

    eos_token_ids: tuple[int, ...] = ()
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None

    @classmethod
    def from_hf(
        cls, generation: Mapping[str, Any] | None, config: ModelConfig, where: str = "generation_config.json"
    ) -> GenerationDefaults:
        """Read a generation_config.json; without one, or without an eos id in it, the config's eos ids count."""
        fields = Fields(generation or {}, where)

        def number(key: str) -> float | None:
            return fields.number(key) if key in fields else None

        return cls(
            eos_token_ids=fields.token_ids("eos_token_id") or config.eos_token_ids,
            do_sample=fields.boolean("do_sample", False) if "do_sample" in fields else None,
            temperature=number("temperature"),
            top_k=fields.integer("top_k", minimum=0) if "top_k" in fields else None,
            top_p=number("top_p"),
            min_p=number("min_p"),
            repetition_penalty=number("repetition_penalty"),
            max_new_tokens=fields.integer("max_new_tokens", minimum=0) if "max_new_tokens" in fields else None,
        )


def _hf_rope_theta(fields: Fields, default: float) -> float:
    """rope_theta, wherever it stands. Any position encoding other than plain rotary is refused."""
    theta = fields.number("rope_theta", default, exclusive=True)
    for key in ("rope_scaling", "rope_parameters"):
        rope = fields.section(key)
        if rope is None:
            continue
        for type_key in ("rope_type", "type"):
            if rope.text(type_key, "default") != "default":
                raise rope.error(type_key, '"default" (scaled rotary embeddings are not supported)')
        if any(isinstance(value, dict) for value in rope.mapping.values()):
            raise fields.error(key, "one set of numbers for all layers")
        theta = rope.number("rope_theta", theta, exclusive=True)
        _check_all_rotated(rope)
    _check_all_rotated(fields)
    return theta


def _check_all_rotated(fields: Fields) -> None:
    """Refuse a rotary embedding that covers a part of the head only."""
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.error("partial_rotary_factor", "1 (all of a head is rotated)")


def _check_gguf_rope(fields: Fields, arch: str) -> None:
    """Refuse scaled rotary embeddings in GGUF metadata."""
    key = f"{arch}.rope.scaling.type"
    if fields.text(key, "none") != "none":
        raise fields.error(key, '"none" (scaled rotary embeddings are not supported)')
    factor = f"{arch}.rope.scaling.factor"
    if fields.number(factor, 1.0) not in (0.0, 1.0):
        raise fields.error(factor, "1 (scaled rotary embeddings are not supported)")


def _check_quantization(fields: Fields) -> None:
    """Refuse what a quantization_config asks for and this library would not do."""
    section = fields.section("quantization_config")
    if section is None:
        return
    if section.text("quant_method", "bitnet") != "bitnet":
        raise section.error("quant_method", '"bitnet"')
    if section.text("linear_class", "bitlinear") not in ("bitlinear", "autobitlinear"):
        raise section.error("linear_class", '"bitlinear" or "autobitlinear"')
    if section.text("quantization_mode", "offline") not in ("offline", "online"):
        raise section.error("quantization_mode", '"offline" or "online"')
    if section.boolean("use_rms_norm", False):
        raise section.error("use_rms_norm", "false (a norm inside each linear is not supported)")
    if "modules_to_not_convert" not in section:
        return
    modules = section.mapping["modules_to_not_convert"]
    if not isinstance(modules, list):
        raise section.error("modules_to_not_convert", "a list of module names")
    for module in cast("list[object]", modules):
        if not isinstance(module, str) or module.removesuffix(".weight") not in (
            "lm_head", "model.embed_tokens", "embed_tokens", "model.norm",
        ):  # fmt: skip
            raise ModelFileError(
                f"{section.where}: modules_to_not_convert names {short(module)}; "
                "only the head (lm_head) may be left unquantised"
            )
