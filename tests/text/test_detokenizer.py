"""The joined stream equals the decoded whole, and no piece holds half a character."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models

from tiny_tokenizer import chatml_json
from tritune.text import Detokenizer, Tokenizer
from tritune.text.tokenizer import TokenizerSpec

FEW = settings(max_examples=100, deadline=None)


def stream(tokenizer: Tokenizer, ids: list[int], skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@pytest.fixture(scope="module")
def fallback() -> Tokenizer:
    """Not byte-level: characters with a space marker, bytes as ``<0x..>``, and the first space stripped."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "a": 257, "b": 258, "▁a": 259, "</s>": 260}
    library = LibraryTokenizer(models.BPE(vocab, [("▁", "a")], byte_fallback=True, fuse_unk=True))
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["</s>"])
    return Tokenizer(TokenizerSpec(json.loads(library.to_str()), {"eos_token": "</s>"}))


@FEW
@given(text=st.text(max_size=30))
def test_text(chatml: Tokenizer, text: str) -> None:
    pieces = stream(chatml, chatml.encode(text, special=False))
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("skip_special", [True, False])
@FEW
@given(data=st.data())
def test_any_ids(chatml: Tokenizer, skip_special: bool, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, chatml.vocab_size + 3), max_size=30))
    assert "".join(stream(chatml, ids, skip_special)) == chatml.decode(ids, skip_special)


@FEW
@given(text=st.text(alphabet="ab 🙂é東", max_size=20))
def test_text_of_a_vocabulary_that_is_not_byte_level(fallback: Tokenizer, text: str) -> None:
    ids = fallback.encode(text.replace(" ", "▁"), special=False)
    pieces = stream(fallback, ids)
    assert "".join(pieces) == fallback.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_over_several_tokens(chatml: Tokenizer) -> None:
    ids = [chatml.token_to_id(char) for char in ("ð", "Ł", "Ļ", "Ĥ")]  # the bytes of 🙂 by their spelling
    assert stream(chatml, [i for i in ids if i is not None]) == ["", "", "", "🙂", ""]
    assert stream(chatml, [i for i in ids[:3] if i is not None]) == ["", "", "", "\ufffd"]


def test_an_added_token_with_spelling_characters(chatml: Tokenizer) -> None:
    library = LibraryTokenizer.from_str(chatml_json())
    library.add_tokens(["café ", "naïve"])
    tokenizer = Tokenizer(TokenizerSpec(json.loads(library.to_str()), {}))
    ids = library.encode("a café naïve b").ids
    assert "".join(stream(tokenizer, ids)) == library.decode(ids)
