"""A tiny random model that speaks: weights, a tokenizer with a chat template, and rows to train it on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from tiny_models import make_hf
from tiny_tokenizer import write_directory

TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_text_model(path: Path, generation: dict[str, Any] | None = None, **sizes: Any) -> Path:
    """Write a model of two layers with a ChatML tokenizer; ``generation``: its generation_config beside the eos id."""
    write_directory(path, kind="chatml", chat_template=TEMPLATE)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    make_hf(path, vocab=tokenizer.get_vocab_size(), hidden=32, ffn=48, heads=2, kv_heads=1, dtype="F32", **sizes)
    _prefer_ascii(path / "model.safetensors", tokenizer)
    config = {"eos_token_id": tokenizer.token_to_id("<|im_end|>"), "do_sample": False} | (generation or {})
    (path / "generation_config.json").write_text(json.dumps(config))
    return path


def _prefer_ascii(weights: Path, tokenizer: Tokenizer) -> None:
    """Make the greedy choice fall on readable tokens: with rows of zeros in the (tied) head, the others score 0."""
    tensors = load_file(weights)
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token])
        if not (text.isascii() and text.isprintable() and text.strip()):
            tensors["model.embed_tokens.weight"][token] = 0
    save_file(tensors, weights, metadata={"format": "pt"})


def write_rows(path: Path, count: int = 6) -> Path:
    """Chat rows, one a line."""
    rows = [
        {"messages": [{"role": "user", "content": f"hello {n}"}, {"role": "assistant", "content": "I am fine."}]}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
