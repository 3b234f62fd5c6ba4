"""The sizes of a model as the tensors of an adapter tell them, for looking at an adapter without its model."""

from __future__ import annotations

from tritune.errors import AdapterError, ModelFileError
from tritune.lora.tensors import AdapterTensors, pairs_of
from tritune.models.config import MAX_LAYERS, MAX_SIZE, ModelConfig

# Which size each side of a projection is: (outputs, inputs).
SIDES = {
    "q_proj": ("queries", "hidden"),
    "k_proj": ("keys", "hidden"),
    "v_proj": ("keys", "hidden"),
    "o_proj": ("hidden", "queries"),
    "gate_proj": ("ffn", "hidden"),
    "up_proj": ("ffn", "hidden"),
    "down_proj": ("hidden", "ffn"),
}
HEAD = 2
"""A head size that every model's sizes are a multiple of; how many heads there are is not known."""


def infer_model(tensors: AdapterTensors) -> ModelConfig:
    """A config with the right sizes where the tensors tell them, and as many layers as are adapted at most.

    Raises AdapterError when they do not fit together.
    """
    sizes: dict[str, int] = {}
    last = 0
    for (layer, projection), pair in pairs_of(tensors).items():
        last = max(last, layer)
        outputs, inputs = SIDES[projection]
        for matrix, label in (("A", inputs), ("B", outputs)):
            name = pair.names[matrix]
            shape = tensors.shapes[name]
            if len(shape) != 2 or not 0 < max(shape) <= MAX_SIZE:
                raise AdapterError(f"{tensors.path}: tensor {name} has shape {list(shape)}; expected a matrix")
            size = shape[1 if (matrix == "A") != tensors.transposed else 0]
            if sizes.setdefault(label, size) != size:
                raise AdapterError(
                    f"{tensors.path}: tensor {name} has shape {list(shape)}, but others say that the size is "
                    f"{sizes[label]}"
                )
    if last >= MAX_LAYERS:
        raise AdapterError(f"{tensors.path}: a tensor is of layer {last}; expected less than {MAX_LAYERS} layers")
    queries = sizes.get("queries", sizes.get("keys", 4))
    try:
        return ModelConfig(
            model_type="unknown",
            vocab_size=1,
            hidden_size=sizes.get("hidden", 4),
            intermediate_size=sizes.get("ffn", 4),
            num_layers=last + 1,
            num_heads=queries // HEAD,
            num_kv_heads=sizes.get("keys", queries) // HEAD,
            head_dim=HEAD,
            activation="silu",
            rms_norm_eps=1e-5,
            rope_theta=1e4,
            max_positions=1,
            tie_word_embeddings=True,
            sub_norms=False,
        )
    except ModelFileError as error:
        raise AdapterError(f"{tensors.path}: no model has the sizes of its tensors: {error}") from None
