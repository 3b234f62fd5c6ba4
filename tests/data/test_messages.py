"""Conversations of every kind that files hold, to the same turns."""

from __future__ import annotations

from typing import Any

import pytest

from tiny_tokenizer import write_directory
from tritune.data import ChatRow, RowEncoder, Turn, read_rows, show_example
from tritune.errors import ConfigError
from tritune.text import ChatTemplate, Tokenizer

CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


@pytest.fixture(scope="module")
def bitnet(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(write_directory(tmp_path_factory.mktemp("bitnet")))


def turns_of(row: dict[str, Any]) -> tuple[Turn, ...]:
    (found,) = read_rows([row])
    assert isinstance(found, ChatRow)
    return found.turns


def shown(row: dict[str, Any], tokenizer: Tokenizer, **options: Any) -> str:
    encoder = RowEncoder(tokenizer, ChatTemplate.resolve(tokenizer, "bitnet"), 1024, **options)
    return show_example(encoder.encode(read_rows([row])[0]).items[0], tokenizer)


@pytest.mark.parametrize(
    "row",
    [
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"messages": [{"from": "user", "value": "a"}, {"from": "chatgpt", "value": "b"}]},
        {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]},
    ],
)
def test_ways_to_write_a_conversation(row: dict[str, Any]) -> None:
    assert [(turn.role, turn.content) for turn in turns_of(row)] == [("user", "a"), ("assistant", "b")]
    assert turns_of(row | {"system": "s"})[0] == Turn("system", "s")


def test_tools_stay_text() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "b"},
    ]
    turns = turns_of({"messages": messages, "tools": [{"name": "add"}], "system": "s"})
    assert [(turn.role, turn.content) for turn in turns] == [
        ("system", 's\n\n[{"name": "add"}]'),
        ("user", "a"),
        ("assistant", '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'),
        ("tool", "2"),
        ("assistant", "b"),
    ]
    sharegpt = [
        {"from": "human", "value": "a"},
        {"from": "function_call", "value": "add(1)"},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "b"},
    ]
    turns = turns_of({"conversations": sharegpt, "tools": "[add]"})
    assert [(turn.role, turn.content) for turn in turns] == [
        ("system", "[add]"), ("user", "a"), ("assistant", "add(1)"), ("tool", "2"), ("assistant", "b"),
    ]  # fmt: skip


def test_results_of_tools_are_never_trained(bitnet: Tokenizer) -> None:
    messages = [{"from": name, "value": name} for name in ("human", "function_call", "observation", "gpt")]
    assert shown({"conversations": messages}, bitnet) == (
        "<|begin_of_text|>User: human<|eot_id|>Assistant: [function_call<|eot_id|>]"
        "Tool: observation<|eot_id|>Assistant: [gpt<|eot_id|>]"
    )


def test_all_answers_are_trained_or_only_the_last(bitnet: Tokenizer) -> None:
    row = {
        "messages": [
            {"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, "abcd", strict=True)
        ]
    }
    start = "<|begin_of_text|>User: a<|eot_id|>Assistant: "
    end = "User: c<|eot_id|>Assistant: [d<|eot_id|>]"
    assert shown(row, bitnet) == f"{start}[b<|eot_id|>]{end}"
    assert shown(row, bitnet, train_on="last") == f"{start}b<|eot_id|>{end}"


def test_a_system_message_for_all_rows(bitnet: Tokenizer) -> None:
    row = {"instruction": "a", "output": "b"}
    rest = "<|eot_id|>User: a<|eot_id|>Assistant: [b<|eot_id|>]"
    assert shown(row, bitnet, system="s") == f"<|begin_of_text|>System: s{rest}"
    assert shown(row | {"system": "t"}, bitnet, system="s") == f"<|begin_of_text|>System: s\n\nt{rest}"
    for plain in ({"text": "a"}, {"prompt": "a", "completion": "b"}):
        with pytest.raises(ConfigError, match="system: the rows are plain text"):
            shown(plain, bitnet, system="s")
    assert shown(plain, bitnet, system="s", prompt_style="chat") == f"<|begin_of_text|>System: s{rest}"


def test_settings_that_are_none(bitnet: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="train_on: expected one of all, last, found first"):
        shown({"text": "a"}, bitnet, train_on="first")


def test_what_decides_the_tokens_is_in_the_fingerprint(bitnet: Tokenizer) -> None:
    template = ChatTemplate.resolve(bitnet, "bitnet")
    encoders = [
        RowEncoder(bitnet, template, 64),
        RowEncoder(bitnet, template, 65),
        RowEncoder(bitnet, ChatTemplate.resolve(bitnet, "chatml"), 64),
        RowEncoder(bitnet, template, 64, "chat"),
        RowEncoder(bitnet, template, 64, system="s"),
        RowEncoder(bitnet, template, 64, train_on="last"),
    ]
    assert len({encoder.fingerprint for encoder in encoders}) == len(encoders)
    assert RowEncoder(bitnet, template, 64).fingerprint == encoders[0].fingerprint
