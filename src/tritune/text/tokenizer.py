"""Text to token ids and back: one class over the ``tokenizers`` library, for directories and for GGUF metadata.

Two views of one vocabulary are kept. The *marked* one reads the strings of special tokens (``<|eot_id|>``) as those
tokens; the *sealed* one cannot produce a special id at all: its special entries are renamed to strings that no text
reaches, so text from outside (a chat message, a row of training data) can never forge the markup of a turn.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer

from tritune.errors import InputError, ModelFileError
from tritune.text.byte_level import bytes_of_token
from tritune.text.specials import BOUNDARY, AddedToken, promote_specials, seal, special_pattern, vocab_ids

# Special tokens that end a turn or a text by their well-known names, for files that name only one end token.
END_OF_TURN_NAMES = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
)


@dataclass(frozen=True)
class TokenizerSpec:
    """Everything a tokenizer is made from, wherever it was read.

    ``library``: the content of a tokenizer.json. ``named``: special tokens by role (``bos_token`` …) as strings.
    ``add_bos``: whether encoding starts with BOS; None = what the post-processor of ``library`` does.
    ``end_ids``: further ids at which a model stops. ``source``: for messages, where it was read.
    """

    library: dict[str, Any]
    named: Mapping[str, str]
    add_bos: bool | None = None
    chat_template: str | None = None
    end_ids: tuple[int, ...] = ()
    source: str = "tokenizer"
    extra_added: tuple[AddedToken, ...] = field(default=())


class Tokenizer:
    """A model's tokenizer. Immutable, and safe to share between threads."""

    def __init__(self, spec: TokenizerSpec) -> None:
        try:
            library, added = promote_specials(spec.library, spec.named, spec.extra_added)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{spec.source}: damaged 'added_tokens' or vocabulary ({error!r})") from error
        self._source = spec.source
        self._library_spec = library
        self._marked = _build(library, spec.source)
        self._special = {token.content: token.id for token in added if token.special}
        self._special_ids = frozenset(self._special.values())
        self._added = added
        self._named = {role: text for role, text in spec.named.items() if self._marked.token_to_id(text) is not None}
        decoder = library.get("decoder")
        self._is_byte_level = isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"  # pyright: ignore[reportUnknownMemberType]
        self.special_pattern = special_pattern(added)
        """Matches the string of any special token and the white space that it swallows; nothing when there is none."""
        self.chat_template = spec.chat_template
        """Source of the model's own chat template, or None."""
        self.add_bos = self._begins_with_bos() if spec.add_bos is None else spec.add_bos and self.bos_id is not None
        """Whether a text of this model begins with BOS."""
        self.vocab_size = 1 + max(self._marked.get_vocab(with_added_tokens=True).values(), default=-1)
        """One more than the largest id."""
        self.end_ids = self._collect_end_ids(spec.end_ids)
        """Ids at which generation ends: eos and the end-of-turn tokens known by name."""

    @staticmethod
    def from_directory(path: str | Path) -> Tokenizer:
        """The tokenizer of a Hugging Face directory: tokenizer.json, and what lies beside it.

        That is tokenizer_config.json, special_tokens_map.json and chat_template.jinja, each optional.
        Raises ModelFileError when tokenizer.json is missing, or a file cannot be read.
        """
        from tritune.text.tokenizer_files import read_directory

        return Tokenizer(read_directory(Path(path)))

    @staticmethod
    def from_gguf(metadata: Mapping[str, Any], source: str = "GGUF file") -> Tokenizer:
        """The byte-level BPE tokenizer in a GGUF file's metadata (``tokenizer.ggml.*``, ``tokenizer.chat_template``).

        Raises ModelFileError for another tokenizer model, an unknown pre-tokenizer, or damaged lists.
        """
        from tritune.text.gguf_vocab import read_gguf_vocab

        return Tokenizer(read_gguf_vocab(metadata, source))

    def library_spec(self) -> dict[str, Any]:
        """The content of a tokenizer.json that encodes as this tokenizer does, BOS included."""
        bos, bos_id = self._named.get("bos_token"), self.bos_id
        if not self.add_bos or bos is None or self._begins_with_bos():
            return self._library_spec
        first, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        second = {"Sequence": {"id": "B", "type_id": 0}}
        known = {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}}
        single, pair = [first, text], [first, text, second]
        template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}
        return self._library_spec | {"post_processor": template}

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hexadecimal digest of all that decides which ids a text becomes."""
        spec = [self._library_spec, self.add_bos, sorted(self._named.items()), sorted(self._special.items())]
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of ``text``, without BOS. ``special``: read special tokens' strings as those tokens; else as plain text.

        Raises InputError for text that is not valid Unicode.
        """
        check_unicode(text)
        if special:
            return self._marked.encode(text, add_special_tokens=False).ids
        return self._encode_sealed(text, is_rest=False)

    def encode_rest(self, text: str) -> list[int]:
        """Ids of plain text that is not the beginning: without the space that some vocabularies put before a text.

        For byte-level vocabularies the same as ``encode(text, special=False)``.
        """
        check_unicode(text)
        return self._encode_sealed(text, is_rest=not self._is_byte_level)

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """``ids`` beginning with exactly one BOS where the model wants one; never with more than one."""
        bos, start = self.bos_id, 0
        while bos is not None and start < len(ids) and ids[start] == bos:
            start += 1
        first = [bos] if bos is not None and (self.add_bos or start > 0) else []
        return [*first, *ids[start:]]

    def encode_prompt(self, text: str, special: bool = True) -> list[int]:
        """Ids of a plain prompt as the model expects it: BOS exactly once if the model wants it, then the text."""
        return self.with_bos(self.encode(text, special))

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become U+FFFD; ids outside the vocabulary are left out."""
        return self._marked.decode([int(i) for i in ids], skip_special_tokens=skip_special)

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token, or None outside the vocabulary."""
        return self._marked.id_to_token(token_id) if token_id >= 0 else None

    def token_to_id(self, token: str) -> int | None:
        """Id of the token spelt exactly so, or None."""
        return self._marked.token_to_id(token)

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes | None:
        """The bytes that a token adds to the text; None when they depend on context (no byte-level vocabulary)."""
        if not self._is_byte_level:
            return None
        if skip_special and token_id in self._special_ids:
            return b""
        token = self.id_to_token(token_id)
        return b"" if token is None else bytes_of_token(token)

    def is_special(self, token_id: int) -> bool:
        """Whether an id is markup, never text."""
        return token_id in self._special_ids

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Ids of the special tokens by their strings."""
        return self._special

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """Strings of the special tokens by role (``bos_token``, ``eos_token`` …), as templates see them."""
        return self._named

    @property
    def bos_id(self) -> int | None:
        """Id that begins a text, or None."""
        return self._named_id("bos_token")

    @property
    def eos_id(self) -> int | None:
        """Id that ends a text, or None."""
        return self._named_id("eos_token")

    @property
    def pad_id(self) -> int | None:
        """Id that the model's files name for padding, or None."""
        return self._named_id("pad_token")

    def _named_id(self, role: str) -> int | None:
        text = self._named.get(role)
        return None if text is None else self._marked.token_to_id(text)

    def _encode_sealed(self, text: str, is_rest: bool) -> list[int]:
        ids: list[int] = []
        while (cut := text.find(BOUNDARY)) >= 0:  # a text may hold the boundary's string, but never its id
            ids += self._encode_sealed(text[: cut + 1], is_rest)
            text, is_rest = text[cut + 1 :], not self._is_byte_level
        if is_rest:
            return ids + self._sealed.encode(BOUNDARY + text, add_special_tokens=False).ids[1:]
        return ids + self._sealed.encode(text, add_special_tokens=False).ids

    def _begins_with_bos(self) -> bool:
        ids = self._marked.encode("", add_special_tokens=True).ids
        return self.bos_id is not None and ids[:1] == [self.bos_id]

    def _collect_end_ids(self, more: Iterable[int]) -> tuple[int, ...]:
        known = [self._special.get(name) for name in END_OF_TURN_NAMES]
        found = [i for i in (self.eos_id, *more, *known) if i is not None]
        return tuple(dict.fromkeys(found))

    @functools.cached_property
    def _sealed(self) -> LibraryTokenizer:
        own = vocab_ids(self._library_spec)
        if self._is_byte_level and all(token.special and token.content not in own for token in self._added):
            # Without its added tokens the model has no way to their ids: share it. A second copy of Llama-3's
            # vocabulary takes two seconds and 70 MB.
            return _without_added(self._marked)
        return _build(seal(self._library_spec, self._added), self._source)


def _without_added(marked: LibraryTokenizer) -> LibraryTokenizer:
    """A tokenizer over the same model and steps, without added tokens."""
    bare = LibraryTokenizer(marked.model)
    if marked.normalizer is not None:
        bare.normalizer = marked.normalizer
    if marked.pre_tokenizer is not None:
        bare.pre_tokenizer = marked.pre_tokenizer
    return bare


def check_unicode(text: str) -> None:
    """Raise InputError when ``text`` holds half a surrogate pair, which has no UTF-8 and so no tokens."""
    found = re.search("[\ud800-\udfff]", text)
    if found:
        raise InputError(
            f"text is not valid Unicode: half a surrogate pair (U+{ord(found[0]):04X}) at character {found.start()}"
        )


def _build(spec: Mapping[str, Any], source: str) -> LibraryTokenizer:
    try:
        built = LibraryTokenizer.from_str(json.dumps(spec))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelFileError(f"{source}: not a tokenizer that can be read ({reason})") from error
    built.no_truncation()
    built.no_padding()
    return built
