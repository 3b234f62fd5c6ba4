"""Model configs: what is accepted, what is refused and with which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tiny_gguf import gguf_metadata
from tiny_models import make_config
from tritune.errors import ModelFileError
from tritune.models.config import GenerationDefaults, ModelConfig


def config(model_type: str = "bitnet", **changes: Any) -> dict[str, Any]:
    """A valid config.json with changes; a change to None removes the field."""
    fields = make_config(
        model_type=model_type, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=None, ffn=96, vocab=300, act=None,
        tie=True, max_positions=256, rope_theta=10000.0,
    )  # fmt: skip
    return {key: value for key, value in (fields | changes).items() if value is not None}


def test_every_field_is_taken_from_the_file() -> None:
    fields = config(rope_theta=500000.0, rope_parameters=None, bos_token_id=5, eos_token_id=[7, 8, 7], head_dim=20)
    assert ModelConfig.from_hf(fields, name="n") == ModelConfig(
        model_type="bitnet",
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=20,
        activation="relu2",
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        max_positions=256,
        tie_word_embeddings=True,
        sub_norms=True,
        bos_token_id=5,
        eos_token_ids=(7, 8),
        name="n",
    )


def test_absent_fields_are_filled_in_as_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    for model_type in ("bitnet", "llama"):
        absent = ("hidden_act", "rms_norm_eps", "rope_theta", "rope_parameters", "head_dim", "num_key_value_heads")
        fields = config(model_type, **dict.fromkeys((*absent, "tie_word_embeddings", "max_position_embeddings")))
        ours = ModelConfig.from_hf(fields)
        # transformers' bitnet has its own number of key/value heads where none is given; null means one each.
        theirs = transformers.AutoConfig.for_model(**fields, num_key_value_heads=None)
        assert ours.activation == theirs.hidden_act
        assert ours.rms_norm_eps == theirs.rms_norm_eps
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
        assert ours.num_kv_heads == theirs.num_key_value_heads
        assert ours.tie_word_embeddings == theirs.tie_word_embeddings
        assert ours.max_positions == theirs.max_position_embeddings


def test_rope_theta_may_sit_in_rope_parameters() -> None:
    fields = config(rope_theta=None, rope_parameters={"rope_theta": 1234.5, "rope_type": "default"})
    assert ModelConfig.from_hf(fields).rope_theta == 1234.5


@pytest.mark.parametrize("name", ["silu", "swish"])
def test_activation_comes_from_the_file(name: str) -> None:
    assert ModelConfig.from_hf(config(hidden_act=name)).activation == "silu"


def test_llama_has_no_sub_norms_unless_its_tensors_have() -> None:
    assert not ModelConfig.from_hf(config("llama")).sub_norms
    assert ModelConfig.from_hf(config("llama"), sub_norms=True).sub_norms


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mistral"}, "model_type is 'mistral'; expected one of bitnet, llama"),
        ({"model_type": None}, "model_type is missing; expected a string"),
        ({"hidden_size": "64"}, "hidden_size is '64'; expected an integer"),
        ({"hidden_size": True}, "hidden_size is True; expected an integer"),
        ({"hidden_size": 64.5}, "hidden_size is 64.5; expected an integer"),
        ({"hidden_size": 0}, "hidden_size is 0; expected an integer from 1"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000; expected an integer from 1"),
        ({"hidden_size": None}, "hidden_size is missing; expected an integer"),
        ({"hidden_size": 66, "head_dim": 16}, "hidden_size is 66; expected a positive multiple of 4"),
        ({"hidden_size": 66, "head_dim": None}, "hidden_size is 66; expected a multiple of num_attention_heads"),
        ({"intermediate_size": 98}, "intermediate_size is 98; expected a positive multiple of 4"),
        ({"intermediate_size": [96]}, r"intermediate_size is \[96\]"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key/value heads"),
        ({"num_key_value_heads": 8}, "4 attention heads cannot share 8 key/value heads"),
        ({"head_dim": 7}, "head_dim is 7; expected an even number"),
        ({"num_key_value_heads": 1, "head_dim": 6}, "kv_heads \\* head_dim is 6; expected a positive multiple of 4"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected one of relu2, silu, swish"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'; expected a number > 0"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; expected a number > 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"max_position_embeddings": 1 << 40}, "max_position_embeddings is 1099511627776"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; expected true or false"),
        ({"attention_bias": True}, "attention_bias is True; expected false"),
        ({"mlp_bias": True}, "mlp_bias is True; expected false"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'; expected a token id"),
        ({"eos_token_id": [2, -1]}, r"eos_token_id is \[2, -1\]; expected a token id"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling: type is 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters: rope_type is 'llama3'; expected \"default\""),
        ({"rope_parameters": {"full_attention": {}}}, "one set of numbers for all layers"),
        ({"rope_parameters": []}, "rope_parameters is \\[\\]; expected an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_wrong_fields_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    fields = {key: value for key, value in (config() | changes).items() if value is not None}
    with pytest.raises(ModelFileError, match=message) as caught:
        ModelConfig.from_hf(fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_rms_norm": True}, "use_rms_norm is True; expected false"),
        ({"quant_method": "gptq"}, "quant_method is 'gptq'; expected \"bitnet\""),
        ({"linear_class": "other"}, "linear_class is 'other'"),
        ({"quantization_mode": "sometimes"}, "quantization_mode is 'sometimes'"),
        ({"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.down_proj"]}, "'model.layers.0.mlp.down_proj'"),
        ({"modules_to_not_convert": ["model"]}, "names 'model'"),
        ({"modules_to_not_convert": [".*"]}, "only the head"),
        ({"modules_to_not_convert": "lm_head"}, "expected a list"),
    ],
)
def test_quantization_that_would_be_computed_otherwise_is_refused(changes: dict[str, Any], message: str) -> None:
    base = {"quant_method": "bitnet", "linear_class": "bitlinear", "modules_to_not_convert": ["lm_head"]}
    ModelConfig.from_hf(config(quantization_config=base))
    with pytest.raises(ModelFileError, match=message):
        ModelConfig.from_hf(config(quantization_config=base | changes))


def from_gguf(metadata: dict[str, Any], **options: Any) -> ModelConfig:
    return ModelConfig.from_gguf(
        metadata, **{"sub_norms": True, "tied": True, "vocab_size": 300, "name": "n", "where": "m.gguf"} | options
    )


@pytest.mark.parametrize(
    ("arch", "activation"), [("bitnet-b1.58", "relu2"), ("bitnet-25", "relu2"), ("bitnet", "silu"), ("llama", "silu")]
)
def test_gguf_keys_give_the_same_config(arch: str, activation: Any) -> None:
    expected = replace(ModelConfig.from_hf(config(), name="n"), model_type=arch, activation=activation)
    assert from_gguf(gguf_metadata(arch, config(), [])) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "qwen2"}, "general.architecture is 'qwen2'; expected one of"),
        ({"general.architecture": None}, "general.architecture is missing"),
        ({"llama.embedding_length": None}, "llama.embedding_length is missing"),
        ({"llama.embedding_length": "64"}, "llama.embedding_length is '64'"),
        ({"llama.attention.head_count": [4, 4]}, "llama.attention.head_count is"),
        (
            {"llama.attention.head_count": 128, "llama.rope.dimension_count": None},
            "heads . head_dim is 0; expected a positive",
        ),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"llama.vocab_size": 301}, "llama.vocab_size is 301; expected the 300 rows"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type is 'yarn'"),
        ({"llama.rope.scaling.factor": 4.0}, "llama.rope.scaling.factor is 4.0"),
        ({"llama.attention.key_length": 32}, "llama.rope.dimension_count is 16; expected the head size 32"),
        ({"llama.attention.value_length": 32}, "llama.attention.value_length is 32"),
        ({"llama.attention.head_count_kv": 3}, "4 attention heads cannot share 3"),
    ],
)
def test_wrong_gguf_keys_are_refused(changes: dict[str, Any], message: str) -> None:
    metadata = {k: v for k, v in (gguf_metadata("llama", config(), []) | changes).items() if v is not None}
    with pytest.raises(ModelFileError, match=message) as caught:
        from_gguf(metadata)
    assert "\n" not in str(caught.value)


def test_generation_defaults_come_from_their_file() -> None:
    generation = {
        "eos_token_id": [9, 2], "do_sample": True, "temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05,
        "repetition_penalty": 1.1, "max_new_tokens": 12, "transformers_version": "5.0",
    }  # fmt: skip
    defaults = GenerationDefaults.from_hf(generation, ModelConfig.from_hf(config()))
    assert defaults == GenerationDefaults((9, 2), True, 0.7, 40, 0.9, 0.05, 1.1, 12)


@pytest.mark.parametrize("generation", [None, {}, {"eos_token_id": None}])
def test_without_generation_defaults_the_config_stops(generation: dict[str, Any] | None) -> None:
    defaults = GenerationDefaults.from_hf(generation, ModelConfig.from_hf(config(eos_token_id=[4, 5])))
    assert defaults == GenerationDefaults(eos_token_ids=(4, 5))


@pytest.mark.parametrize("field", ["temperature", "top_k", "do_sample", "eos_token_id", "max_new_tokens"])
def test_wrong_generation_defaults_are_refused(field: str) -> None:
    with pytest.raises(ModelFileError, match=f"generation_config.json: {field} is 'x'"):
        GenerationDefaults.from_hf({field: "x"}, ModelConfig.from_hf(config()))
