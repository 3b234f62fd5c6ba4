"""Special tokens in a tokenizer.json: which ones there are, and a copy in which no text reaches them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

BOUNDARY = "\0boundary\0"
"""An added token of a sealed copy, with an id of its own: text behind it is encoded as text behind markup is."""

_LOOKS_SPECIAL = re.compile(r"<\|[^\s|<>]+\|>|<｜[^｜]+｜>")


@dataclass(frozen=True)
class AddedToken:
    """One entry of ``added_tokens``. ``lstrip``/``rstrip``: it swallows the white space to its left or right."""

    id: int
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    single_word: bool = False

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> AddedToken:
        """Read an entry of tokenizer.json. Raises one of Python's own errors when it is not one."""
        flags = {
            name: bool(entry.get(name, False)) for name in ("special", "lstrip", "rstrip", "normalized", "single_word")
        }
        return AddedToken(id=int(entry["id"]), content=str(entry["content"]), **flags)


def promote_specials(
    library: Mapping[str, Any], named: Mapping[str, str], extra: Iterable[AddedToken]
) -> tuple[dict[str, Any], list[AddedToken]]:
    """A copy of ``library`` whose ``added_tokens`` list is complete, and that list, by id.

    Special is what the file says, what has a role (``named``), and what is spelt like markup (``<|…|>``): some files
    flag their end-of-turn as an ordinary added token.
    """
    tokens: dict[str, AddedToken] = {}
    for entry in cast("Sequence[Mapping[str, Any]]", library.get("added_tokens") or ()):
        token = AddedToken.from_json(entry)
        tokens[token.content] = token
    for token in extra:
        tokens.setdefault(token.content, token)
    vocab = vocab_ids(library)
    for text in named.values():
        if text not in tokens and text in vocab:
            tokens[text] = AddedToken(vocab[text], text, special=True)
    roles = set(named.values())
    marked = [
        replace(t, special=True) if t.content in roles or _LOOKS_SPECIAL.fullmatch(t.content) else t
        for t in tokens.values()
    ]
    marked.sort(key=lambda token: token.id)
    return {**library, "added_tokens": [vars(token) for token in marked]}, marked


def seal(library: Mapping[str, Any], added: Iterable[AddedToken]) -> dict[str, Any]:
    """A copy of ``library`` that encodes ordinary text to the same ids, and that can never give a special token's id.

    Special tokens leave ``added_tokens``; their entries in the model's vocabulary get names that no text spells, and
    merges that would build them are left out. Ordinary added tokens keep their ids. ``BOUNDARY`` is added.
    """
    model = dict(cast("Mapping[str, Any]", library["model"]))
    special = {token.content: token.id for token in added if token.special and token.content != model.get("unk_token")}
    plain = [token for token in added if not token.special]
    if isinstance(model.get("vocab"), Mapping):
        vocab = cast("Mapping[str, int]", model["vocab"])
        sealed = {(_sealed_name(i) if text in special else text): i for text, i in vocab.items()}
        model["vocab"] = sealed | {token.content: token.id for token in plain}
    else:
        scored = cast("Sequence[tuple[str, float]]", model.get("vocab") or ())
        model["vocab"] = [
            (_sealed_name(i) if text in special else text, score) for i, (text, score) in enumerate(scored)
        ]
    if "merges" in model:
        merges = [_pair(merge) for merge in cast("Sequence[str | Sequence[str]]", model["merges"])]
        model["merges"] = [(a, b) for a, b in merges if not special.keys() & {a, b, a + b}]
    boundary = AddedToken(1 + max(vocab_ids({"model": model}).values(), default=-1), BOUNDARY, special=True)
    tokens = [vars(token) for token in (*plain, boundary)]
    return {**library, "model": model, "added_tokens": tokens, "post_processor": None}


def special_pattern(added: Iterable[AddedToken]) -> re.Pattern[str]:
    """Matches the string of any special token, the longest first, with the white space that the token swallows."""
    special = sorted((token for token in added if token.special), key=lambda token: -len(token.content))
    parts = [r"\s*" * t.lstrip + re.escape(t.content) + r"\s*" * t.rstrip for t in special]
    return re.compile("|".join(parts) or r"(?!)")


def _sealed_name(token_id: int) -> str:
    # Neither NUL nor the space is in the byte-level alphabet, and no merge leads here.
    return f"\0sealed {token_id}\0"


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return first, second


def vocab_ids(library: Mapping[str, Any]) -> Mapping[str, int]:
    """Ids of the tokens of the model itself, added ones left out."""
    vocab: Any = cast("Mapping[str, Any]", library.get("model") or {}).get("vocab") or {}
    if isinstance(vocab, Mapping):
        return cast("Mapping[str, int]", vocab)
    return {str(entry[0]): index for index, entry in enumerate(cast("Sequence[Sequence[Any]]", vocab))}
