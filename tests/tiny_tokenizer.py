"""A byte-level BPE of a few hundred tokens, trained on the spot, as a directory and as GGUF metadata."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CORPUS = [
    "User: hello there, how are you today? Assistant: I am fine, thank you. What can I do for you?",
    "It's a story: once upon a time there were 123 cats and 4567 dogs.\n\nThey couldn't agree.\r\n  The end.\t\n",
    "Grüße aus Köln, naïve café — 東京は日本の首都です。 Привет, мир! 🙂🙃👩‍👩‍👧 नमस्ते دنیا",
    "def f(x):\n    return x + 1  # one more\n<|eot_id|>Assistant: <|im_end|> eot_id im_start end_of_text",
] * 3

LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

BITNET_SPECIALS = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
CHATML_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = "<think>"


@cache
def bitnet_json() -> str:
    """Like Llama-3's: special tokens behind the vocabulary, merges ignored for whole words, BOS by post-processor."""
    split = pre_tokenizers.Split(Regex(LLAMA3_REGEX), behavior="isolated")
    trained = _train(pre_tokenizers.Sequence([split, _byte_level(use_regex=False)]), ())
    trained.add_special_tokens(list(BITNET_SPECIALS))
    trained.add_tokens([AddedToken(USER_DEFINED, special=False, normalized=False)])
    bos = BITNET_SPECIALS[0]
    trained.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, trained.token_to_id(bos))]
    )
    spec = json.loads(trained.to_str())
    spec["model"]["ignore_merges"] = True
    return json.dumps(spec)


@cache
def chatml_json() -> str:
    """Like SmolLM2's: special tokens are the first of the vocabulary, single digits, GPT-2's regex, no BOS."""
    steps = [pre_tokenizers.Digits(individual_digits=True), _byte_level(use_regex=True)]
    return _train(pre_tokenizers.Sequence(steps), CHATML_SPECIALS).to_str()


def write_directory(folder: Path, kind: str = "bitnet", **config: Any) -> Path:
    """Tokenizer files of one of the two kinds, as in a model's directory; ``config``: fields to add or replace."""
    folder.mkdir(parents=True, exist_ok=True)
    roles = (
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
        if kind == "bitnet"
        else {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    )
    (folder / "tokenizer.json").write_text(bitnet_json() if kind == "bitnet" else chatml_json(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({**roles, **config}), encoding="utf-8")
    return folder


def gguf_metadata(kind: str = "bitnet", **more: Any) -> dict[str, Any]:
    """The same vocabulary as a GGUF file carries it; ``more``: keys to add or, with None, to leave out."""
    spec = json.loads(bitnet_json() if kind == "bitnet" else chatml_json())
    added = {token["id"]: token for token in spec["added_tokens"]}
    tokens = {index: text for text, index in spec["model"]["vocab"].items()}
    tokens |= {index: token["content"] for index, token in added.items()}
    ids = {text: index for index, text in tokens.items()}
    types = [1 if i not in added else 3 if added[i]["special"] else 4 for i in range(len(tokens))]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [tokens[index] for index in range(len(tokens))],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in spec["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": ids["<|eot_id|>" if kind == "bitnet" else "<|im_end|>"],
    }
    if kind == "bitnet":
        metadata["tokenizer.ggml.bos_token_id"] = ids["<|begin_of_text|>"]
    else:
        metadata["tokenizer.ggml.pre"] = "smollm"
    return {key: value for key, value in (metadata | more).items() if value is not None}


def _byte_level(use_regex: bool) -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _train(pre_tokenizer: pre_tokenizers.PreTokenizer, specials: tuple[str, ...]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer
