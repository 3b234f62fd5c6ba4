"""The tokenizer in a GGUF file's metadata, rebuilt as a tokenizer.json.

Only byte-level BPE (``tokenizer.ggml.model`` = gpt2) is read. ``tokenizer.ggml.pre`` names the pre-tokenizer; a file
without it is taken for Llama-3's, which the 2B-4T file of Microsoft is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tritune.errors import ModelFileError
from tritune.text.specials import AddedToken
from tritune.text.tokenizer import TokenizerSpec

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# Pre-tokenizer names of llama.cpp, by the family whose rules they follow.
_FAMILIES = {
    "llama3": ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "dbrx", "smaug-bpe", "pixtral", "lfm2"),
    "qwen2": ("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"),
    "gpt2": ("gpt-2", "mpt", "olmo", "jais", "phi-2", "gigachat", "roberta-bpe"),
    "smollm": ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
}
_FAMILY_OF = {name: family for family, names in _FAMILIES.items() for name in names}

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5


def read_gguf_vocab(metadata: Mapping[str, Any], source: str) -> TokenizerSpec:
    """Rebuild the tokenizer of ``metadata``. Raises ModelFileError naming the key that is wrong."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelFileError(f"{source}: tokenizer.ggml.model is {model!r}; only 'gpt2' (byte-level BPE) can be read")
    pre = metadata.get("tokenizer.ggml.pre")
    family = "llama3" if pre is None else _FAMILY_OF.get(str(pre))
    if family is None:
        known = ", ".join(sorted(_FAMILY_OF))
        raise ModelFileError(f"{source}: tokenizer.ggml.pre is {pre!r}, an unknown pre-tokenizer (known: {known})")
    tokens = _strings(metadata, "tokenizer.ggml.tokens", source)
    merges = _merges(metadata, source)
    types = _token_types(metadata, len(tokens), source)
    added = _added(tokens, types)
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocab[token] != index)
        raise ModelFileError(f"{source}: tokenizer.ggml.tokens holds {twice!r} twice")
    ids = {
        role: _token_id(metadata, role, len(tokens), source)
        for role in ("bos", "eos", "padding", "unknown", "eot", "eom")
    }
    roles = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
    named = {name: tokens[i] for role, name in roles.items() if (i := ids[role]) is not None}
    add_bos = metadata.get("tokenizer.ggml.add_bos_token")
    template = metadata.get("tokenizer.chat_template")
    return TokenizerSpec(
        library=_library(_own_vocab(tokens, added), merges, added, family),
        named=named,
        add_bos=bool(add_bos) if add_bos is not None else family == "llama3" and ids["bos"] is not None,
        chat_template=template if isinstance(template, str) and template else None,
        end_ids=tuple(i for i in (ids["eot"], ids["eom"]) if i is not None),
        source=source,
    )


def _library(
    vocab: dict[str, int], merges: list[tuple[str, str]], added: list[AddedToken], family: str
) -> dict[str, Any]:
    """The content of a tokenizer.json with the pre-tokenizer of ``family``."""
    by_regex = {"llama3": _LLAMA3, "qwen2": _QWEN2}.get(family)
    steps: list[dict[str, Any]] = []
    if by_regex is not None:
        steps.append({"type": "Split", "pattern": {"Regex": by_regex}, "behavior": "Isolated", "invert": False})
    if family == "smollm":
        steps.append({"type": "Digits", "individual_digits": True})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": by_regex is None}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [vars(token) for token in added],
        "normalizer": {"type": "NFC"} if family == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "ignore_merges": family == "llama3", "vocab": vocab, "merges": merges},
    }


def _own_vocab(tokens: Sequence[str], added: Sequence[AddedToken]) -> dict[str, int]:
    """Ids of the model's own tokens: all but the added ones at the end, which the library numbers on by itself."""
    end = len(tokens)
    for token in reversed(added):
        if token.id != end - 1:
            break
        end -= 1
    return {token: index for index, token in enumerate(tokens[:end])}


def _added(tokens: Sequence[str], types: Sequence[int]) -> list[AddedToken]:
    # Unused fillers ([PAD128300]) are special too: text must never reach them.
    special = {_CONTROL, _UNKNOWN, _UNUSED}
    kinds = special | {_USER_DEFINED}
    return [AddedToken(i, t, special=types[i] in special) for i, t in enumerate(tokens) if types[i] in kinds]


def _strings(metadata: Mapping[str, Any], key: str, source: str) -> list[str]:
    found = metadata.get(key)
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ModelFileError(f"{source}: {key} is missing or is not a list")
    strings = list(cast("Sequence[Any]", found))
    if not strings or not all(isinstance(value, str) for value in strings):
        raise ModelFileError(f"{source}: {key} must be a list of strings with at least one entry")
    return strings


def _merges(metadata: Mapping[str, Any], source: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for index, merge in enumerate(_strings(metadata, "tokenizer.ggml.merges", source)):
        first, space, second = merge.partition(" ")
        if not (first and space and second):
            raise ModelFileError(
                f"{source}: tokenizer.ggml.merges[{index}] is {merge!r}, expected two tokens and a space"
            )
        pairs.append((first, second))
    return pairs


def _token_types(metadata: Mapping[str, Any], count: int, source: str) -> list[int]:
    found = metadata.get("tokenizer.ggml.token_type")
    if found is None:
        return [_NORMAL] * count
    if not isinstance(found, Sequence) or not all(isinstance(value, int) for value in cast("Sequence[Any]", found)):
        raise ModelFileError(f"{source}: tokenizer.ggml.token_type is not a list of whole numbers")
    types = list(cast("Sequence[int]", found))
    if len(types) != count:
        raise ModelFileError(f"{source}: tokenizer.ggml.token_type has {len(types)} entries for {count} tokens")
    return types


def _token_id(metadata: Mapping[str, Any], role: str, count: int, source: str) -> int | None:
    key = f"tokenizer.ggml.{role}_token_id"
    found = metadata.get(key)
    if found is None:
        return None
    if not isinstance(found, int) or not 0 <= found < count:
        raise ModelFileError(f"{source}: {key} is {found!r}, expected an id of the vocabulary of {count}")
    return found
