"""Ids and text against the ``tokenizers`` library itself, GGUF against the directory, and what damaged files say."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from tiny_tokenizer import USER_DEFINED, bitnet_json, chatml_json, gguf_metadata, write_directory
from tritune.errors import InputError, ModelFileError
from tritune.text import Tokenizer

PIECES = [
    "\0boundary\0boundary\0",
    "<|eot_id|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<think>",
    " ",
    "\n",
    "\r\n",
    "It's",
    "123456",
    "é",
    "🙂",
    "東京",
]
ANY_TEXT = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(PIECES)), max_size=12).map("".join)
FEW = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("kind", ["bitnet", "chatml"])
@FEW
@given(text=ANY_TEXT)
def test_marked_ids_equal_the_librarys(kind: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    library = LibraryTokenizer.from_str(bitnet_json() if kind == "bitnet" else chatml_json())
    ids = library.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, special=True) == ids
    assert tokenizer.decode(ids, skip_special=False) == library.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", ["bitnet", "chatml"])
@FEW
@given(text=ANY_TEXT)
def test_gguf_gives_the_directorys_ids(kind: str, text: str, request: pytest.FixtureRequest) -> None:
    directory: Tokenizer = request.getfixturevalue(kind)
    gguf = Tokenizer.from_gguf(gguf_metadata(kind))
    for special in (True, False):
        assert gguf.encode(text, special) == directory.encode(text, special)
    assert (gguf.vocab_size, gguf.bos_id, gguf.eos_id) == (directory.vocab_size, directory.bos_id, directory.eos_id)
    assert gguf.add_bos == directory.add_bos == (kind == "bitnet")


@pytest.mark.parametrize("kind", ["bitnet", "chatml"])
@FEW
@given(text=ANY_TEXT)
def test_plain_text_never_gives_a_special_id(kind: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode(text, special=False)
    assert not any(tokenizer.is_special(token) for token in ids)
    assert max(ids, default=0) < tokenizer.vocab_size
    assert tokenizer.decode(ids) == text
    if not tokenizer.special_pattern.search(text) and "boundary" not in text:
        assert ids == tokenizer.encode(text, special=True)


def test_sealing_holds_where_the_vocabulary_could_spell_a_special_token() -> None:
    # No pre-tokenizer and ignore_merges: the whole text is one word, and the word is in the vocabulary.
    spec = json.loads(chatml_json())
    spec["model"]["ignore_merges"] = True
    spec["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    from tritune.text.tokenizer import TokenizerSpec

    tokenizer = Tokenizer(TokenizerSpec(spec, {"eos_token": "<|im_end|>"}))
    ids = tokenizer.encode("<|im_end|>", special=False)
    assert len(ids) > 1
    assert tokenizer.decode(ids) == "<|im_end|>"
    assert tokenizer.encode("<|im_end|>", special=True) == [tokenizer.eos_id]


def test_user_defined_tokens_are_text(bitnet: Tokenizer) -> None:
    ids = bitnet.encode(USER_DEFINED, special=False)
    assert ids == [bitnet.token_to_id(USER_DEFINED)]
    assert bitnet.decode(ids) == USER_DEFINED


def test_markup_flagged_as_ordinary_is_special_all_the_same(tmp_path: Path) -> None:
    folder = write_directory(tmp_path, kind="chatml")
    spec = json.loads((folder / "tokenizer.json").read_text())
    for token in spec["added_tokens"]:
        token["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = Tokenizer.from_directory(folder)
    assert all(tokenizer.is_special(token) for token in range(3))
    assert not set(tokenizer.encode("a<|im_start|>b<|im_end|>", special=False)) & {0, 1, 2}


def test_facts_of_the_vocabulary(bitnet: Tokenizer, chatml: Tokenizer) -> None:
    assert bitnet.bos_id == bitnet.token_to_id("<|begin_of_text|>") == bitnet.vocab_size - 4
    assert bitnet.id_to_token(bitnet.vocab_size - 1) == USER_DEFINED
    assert bitnet.id_to_token(bitnet.vocab_size) is None
    assert bitnet.id_to_token(-1) is None
    # Both end tokens of the 2B-4T count, whichever one the file calls eos.
    assert bitnet.end_ids == (bitnet.token_to_id("<|eot_id|>"), bitnet.token_to_id("<|end_of_text|>"))
    assert (chatml.bos_id, chatml.eos_id, chatml.pad_id, chatml.add_bos) == (None, 2, 0, False)


def test_bos_exactly_once(bitnet: Tokenizer, chatml: Tokenizer) -> None:
    plain = bitnet.encode("hello", special=False)
    bos = [bitnet.bos_id]
    assert bitnet.encode_prompt("hello") == bos + plain
    assert bitnet.encode_prompt("<|begin_of_text|>hello") == bos + plain
    assert bitnet.with_bos(bos + bos + plain) == bos + plain
    assert chatml.encode_prompt("hello") == chatml.encode("hello", special=False)


@pytest.mark.parametrize("declared", [True, False])
def test_add_bos_of_the_config_wins(tmp_path: Path, declared: bool) -> None:
    assert Tokenizer.from_directory(write_directory(tmp_path, add_bos_token=declared)).add_bos is declared


def test_decoding_leaves_out_ids_outside_of_the_vocabulary(bitnet: Tokenizer) -> None:
    ids = bitnet.encode("hello", special=False)
    assert bitnet.decode([*ids, bitnet.vocab_size + 5]) == "hello"
    assert bitnet.token_bytes(bitnet.vocab_size + 5) == b""


def test_templates_are_found(tmp_path: Path) -> None:
    one = write_directory(tmp_path / "one", chat_template="in config")
    assert Tokenizer.from_directory(one).chat_template == "in config"
    (one / "chat_template.jinja").write_text("in file", encoding="utf-8")
    assert Tokenizer.from_directory(one).chat_template == "in file"
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert Tokenizer.from_directory(write_directory(tmp_path / "two", chat_template=several)).chat_template == "yes"
    assert Tokenizer.from_gguf(gguf_metadata(**{"tokenizer.chat_template": "in gguf"})).chat_template == "in gguf"


def test_roles_may_be_objects_or_come_from_the_map(tmp_path: Path) -> None:
    folder = write_directory(tmp_path, bos_token={"__type": "AddedToken", "content": "<|begin_of_text|>"})
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<|end_of_text|>", "eos_token": "x"}))
    tokenizer = Tokenizer.from_directory(folder)
    assert tokenizer.bos_id == tokenizer.token_to_id("<|begin_of_text|>")
    assert tokenizer.pad_id == tokenizer.token_to_id("<|end_of_text|>")
    assert tokenizer.eos_id == tokenizer.token_to_id("<|eot_id|>")  # the config's


def test_half_a_surrogate_is_refused(bitnet: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"U\+D83D\) at character 2$"):
        bitnet.encode("ab\ud83d", special=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no tokenizer.json"),
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object, found list"),
        ("{}", "no 'model'"),
        ('{"version": "1.0", "model": {"type": "Nonsense"}}', "not a tokenizer that can be read"),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": [{"id": 1}]}', "added_tokens"),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": 3}', "added_tokens"),
    ],
)
def test_damaged_directories(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFileError, match=re.escape(message)) as caught:
        Tokenizer.from_directory(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ({"tokenizer.ggml.pre": "martian"}, "tokenizer.ggml.pre is 'martian'"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": None}, "holds 'a' twice"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "list of strings"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merges[0] is 'ab'"),
        ({"tokenizer.ggml.merges": ["qqq zzz"]}, "not a tokenizer that can be read"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type has 1 entries"),
        ({"tokenizer.ggml.token_type": 7}, "token_type"),
        ({"tokenizer.ggml.eos_token_id": 99999}, "eos_token_id is 99999"),
        ({"tokenizer.ggml.bos_token_id": "x"}, "bos_token_id is 'x'"),
    ],
)
def test_damaged_gguf_metadata(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFileError, match=re.escape(message)) as caught:
        Tokenizer.from_gguf(gguf_metadata(**change), source="model.gguf")
    assert str(caught.value).startswith("model.gguf: ")
    assert "\n" not in str(caught.value)


TEXTS = [
    "Hello, world! It's 12345.67 o'clock;  two  spaces\n\n\nand\r\n lines \t",
    "Grüße, naïve café — 東京は日本の首都です。 Привет! 🙂🙃👩‍👩‍👧 नमस्ते دنیا ١٢٣ ½ ²",
    "def f(x):\n\treturn x+1  # don't\n" * 3,
    "\u2028\u00a0 \ufeff\u200b'S 'LL x'VE",
]


def test_smollm2_from_gguf_metadata(shared: Path) -> None:
    spec = json.loads((shared / "data/smollm2_tokenizer.json").read_text(encoding="utf-8"))
    library = LibraryTokenizer.from_str(json.dumps(spec))
    ordered = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].__getitem__)
    special = {token["id"] for token in spec["added_tokens"]}
    tokenizer = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": ordered,
            "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(ordered))],
            "tokenizer.ggml.merges": [" ".join(pair) for pair in spec["model"]["merges"]],
        }
    )
    for text in TEXTS:
        assert tokenizer.encode(text, special=True) == library.encode(text, add_special_tokens=False).ids


def test_llama3_ranks_without_pre(shared: Path) -> None:
    """The vocabulary of the 2B-4T, from its tiktoken ranks; the expected ids follow from the ranks alone."""
    regex = pytest.importorskip("regex")
    from tiny_tokenizer import LLAMA3_REGEX
    from tritune.text.byte_level import byte_alphabet

    lines = (shared / "data/llama3_tokenizer.model").read_bytes().split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, _, rank in (line.partition(b" ") for line in lines if line)}
    spelling = {byte: char for char, byte in byte_alphabet().items()}
    spelt = {token: "".join(spelling[byte] for byte in token) for token in ranks}
    merges = [pair for token in ranks if len(token) > 1 and len(pair := _merge(token, ranks, ranks[token])) == 2]
    tokenizer = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": [*spelt.values(), "<|begin_of_text|>", "<|end_of_text|>"],
            "tokenizer.ggml.token_type": [1] * len(spelt) + [3, 3],
            "tokenizer.ggml.merges": [f"{spelt[a]} {spelt[b]}" for a, b in merges],
            "tokenizer.ggml.bos_token_id": len(spelt),
        }
    )
    for text in TEXTS:
        words = [word.encode() for word in regex.findall(LLAMA3_REGEX, text)]
        expected = [ranks[part] for word in words for part in ([word] if word in ranks else _merge(word, ranks))]
        assert tokenizer.encode(text, special=False) == expected
    assert tokenizer.add_bos


def _merge(word: bytes, ranks: dict[bytes, int], below: int = 1 << 30) -> list[bytes]:
    """Byte-pair encoding by ranks, the textbook way; only merges of a rank less than ``below``."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while len(parts) > 1:
        rank, index = min((ranks.get(parts[i] + parts[i + 1], below), i) for i in range(len(parts) - 1))
        if rank >= below:
            break
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    return parts


@FEW
@given(text=ANY_TEXT)
def test_sealing_without_a_second_copy_of_the_model(bitnet: Tokenizer, text: str) -> None:
    # Every added token is special and lies behind the model's own vocabulary, as in Llama-3's.
    metadata = gguf_metadata()
    metadata["tokenizer.ggml.token_type"][-1] = 3
    tokenizer = Tokenizer.from_gguf(metadata)
    ids = tokenizer.encode(text, special=False)
    assert max(ids, default=0) < tokenizer.vocab_size - 4
    assert tokenizer.decode(ids) == text
    if USER_DEFINED not in text:
        assert ids == bitnet.encode(text, special=False)
