"""Preference rows as they are found in the wild, and the pairs of sequences that they become."""

from __future__ import annotations

from typing import Any

import pytest

from tiny_tokenizer import write_directory
from tritune.data import PreferenceExample, RowEncoder, pack, read_rows, show_example
from tritune.errors import DataError
from tritune.text import ChatTemplate, Tokenizer

USER = {"role": "user", "content": "hello"}
GOOD = {"role": "assistant", "content": "fine"}
BAD = {"role": "assistant", "content": "no"}

CHAT = [
    {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    {"prompt": "hello", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    {"prompt": [USER], "chosen": GOOD, "rejected": BAD},
    {"prompt": "hello", "chosen": GOOD, "rejected": BAD},
    {"prompt": [USER], "chosen": "fine", "rejected": "no"},
    {
        "conversations": [{"from": "human", "value": "hello"}],
        "chosen": {"from": "gpt", "value": "fine"},
        "rejected": {"from": "gpt", "value": "no"},
    },
    {"instruction": "hello", "input": "", "chosen": "fine", "rejected": "no"},
    {"question": "hello", "chosen": "fine", "rejected": "no", "system": ""},
    {"chosen": "\n\nHuman: hello\n\nAssistant: fine", "rejected": "\n\nHuman: hello\n\nAssistant: no"},
]


@pytest.fixture(scope="module")
def bitnet(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(write_directory(tmp_path_factory.mktemp("bitnet")))


def pair_of(row: dict[str, Any], tokenizer: Tokenizer, max_seq_len: int = 1024, **options: Any) -> PreferenceExample:
    encoder = RowEncoder(tokenizer, ChatTemplate.resolve(tokenizer, "bitnet"), max_seq_len, **options)
    (item,) = encoder.encode(read_rows([row])[0]).items
    assert isinstance(item, PreferenceExample)
    return item


@pytest.mark.parametrize("row", CHAT)
def test_every_way_to_write_a_conversation_gives_the_same_pair(row: dict[str, Any], bitnet: Tokenizer) -> None:
    pair = pair_of(row, bitnet)
    prompt = "<|begin_of_text|>User: hello<|eot_id|>Assistant: "
    assert show_example(pair.chosen, bitnet) == prompt + "[fine<|eot_id|>]"
    assert show_example(pair.rejected, bitnet) == prompt + "[no<|eot_id|>]"


def test_three_texts_are_plain_text_unless_turns_are_asked_for(bitnet: Tokenizer) -> None:
    row = {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
    pair = pair_of(row, bitnet)
    assert show_example(pair.chosen, bitnet) == "<|begin_of_text|>2 + 2 =[ 4<|eot_id|>]"
    assert show_example(pair.rejected, bitnet) == "<|begin_of_text|>2 + 2 =[ 5<|eot_id|>]"
    assert show_example(pair_of(row, bitnet, prompt_style="chat"), bitnet).startswith("<|begin_of_text|>User: 2 + 2 =")


def test_a_system_column_is_not_lost(bitnet: Tokenizer) -> None:
    row = {"system": "be kind", "prompt": "hello", "chosen": "fine", "rejected": "no"}
    for pair in (pair_of(row, bitnet), pair_of(row | {"prompt": [USER]}, bitnet)):
        assert show_example(pair, bitnet) == (
            "<|begin_of_text|>System: be kind<|eot_id|>User: hello<|eot_id|>Assistant: [fine<|eot_id|>]"
        )


def test_earlier_answers_are_no_part_of_the_preference(bitnet: Tokenizer) -> None:
    before = [USER, GOOD, USER]
    pair = pair_of({"chosen": [*before, GOOD], "rejected": [*before, BAD]}, bitnet)
    assert show_example(pair.chosen, bitnet).endswith(
        "Assistant: fine<|eot_id|>User: hello<|eot_id|>Assistant: [fine<|eot_id|>]"
    )


@pytest.mark.parametrize("max_seq_len", range(10, 60, 7))
def test_too_long_pairs_lose_the_same_part_of_the_prompt(bitnet: Tokenizer, max_seq_len: int) -> None:
    row = {"prompt": "a " * 40, "chosen": "c", "rejected": "c c c"}
    pair = pair_of(row, bitnet, max_seq_len)
    assert max(len(pair.chosen), len(pair.rejected)) == min(max_seq_len, len(pair_of(row, bitnet).rejected))
    prompts = [example.tokens[~example.trained].tolist() for example in pair.sequences]
    assert prompts[0] == prompts[1]


def test_a_pair_stays_together_in_a_batch(bitnet: Tokenizer) -> None:
    pair = pair_of(CHAT[0], bitnet)
    batch = pack([pair, pair])
    assert len(pair) == len(pair.chosen) + len(pair.rejected)
    assert batch.q_start.tolist() == [0, len(pair.chosen), len(pair), len(pair) + len(pair.chosen), 2 * len(pair)]
    assert batch.tokens[: len(pair.chosen)].tolist() == pair.chosen.tokens.tolist()


def test_pairs_that_teach_nothing_are_left_out(bitnet: Tokenizer) -> None:
    encoder = RowEncoder(bitnet, ChatTemplate.resolve(bitnet, "bitnet"), 16)
    for answers in (("a", "a"), ("a " * 20, "a")):
        row = read_rows([{"prompt": "q", "chosen": answers[0], "rejected": answers[1]}])[0]
        assert encoder.encode(row).items == ()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": "a", "rejected": None}, "'rejected' is null, expected text or messages"),
        ({"chosen": "a", "rejected": "b"}, "no 'prompt', and 'chosen' is no conversation with one"),
        ({"prompt": "p", "chosen": 3, "rejected": "b"}, "'chosen' is a number, expected text or messages"),
        ({"chosen": [USER, GOOD], "rejected": [USER | {"content": "x"}, BAD]}, "answer different prompts"),
        ({"prompt": [USER], "chosen": [], "rejected": [BAD]}, "different prompts"),
        ({"chosen": [USER], "rejected": [USER]}, "no answer of the assistant to learn in 'chosen'"),
    ],
)
def test_pairs_that_are_none(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_rows([row])
