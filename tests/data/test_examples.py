"""Rows to examples: prompts, what is trained, what is cut and what is dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_tokenizer import write_directory
from tritune.data import Example, alpaca_prompt, build_examples, read_rows, show_example
from tritune.data.examples import fit
from tritune.errors import ConfigError, DataError
from tritune.text import ChatTemplate, Tokenizer, encode_chat

ROW = {"instruction": "how are you", "input": "today", "output": "fine, thank you"}


@pytest.fixture(scope="module")
def bitnet(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(write_directory(tmp_path_factory.mktemp("bitnet")))


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(write_directory(tmp_path_factory.mktemp("chatml"), kind="chatml"))


def show_first(rows: list[dict[str, object]], tokenizer: Tokenizer, template: str, **options: object) -> str:
    made = build_examples(read_rows(rows), tokenizer, ChatTemplate.resolve(tokenizer, template), 1024, **options)  # type: ignore[arg-type]
    return show_example(made.examples[0], tokenizer)


def test_alpaca_in_the_models_template(bitnet: Tokenizer, chatml: Tokenizer) -> None:
    assert show_first([ROW], bitnet, "bitnet") == (
        "<|begin_of_text|>User: how are you\n\ntoday<|eot_id|>Assistant: [fine, thank you<|eot_id|>]"
    )
    assert show_first([ROW | {"input": ""}], chatml, "chatml") == (
        "<|im_start|>user\nhow are you<|im_end|>\n<|im_start|>assistant\n[fine, thank you<|im_end|>]"
    )


def test_the_prompt_is_the_one_of_generation(bitnet: Tokenizer) -> None:
    template = ChatTemplate.resolve(bitnet, "bitnet")
    example = build_examples(read_rows([ROW]), bitnet, template, 1024).examples[0]
    prompt = encode_chat(bitnet, template, [{"role": "user", "content": "how are you\n\ntoday"}])
    assert example.tokens[~example.trained].tolist() == prompt
    assert example.trained[len(prompt) :].all()


def test_classic_alpaca_prompts(bitnet: Tokenizer) -> None:
    below = "Below is an instruction that describes a task"
    with_input = (
        f"{below}, paired with an input that provides further context. Write a response that appropriately completes "
        "the request.\n\n### Instruction:\nhow are you\n\n### Input:\ntoday\n\n### Response:\n"
    )
    without = (
        f"{below}. Write a response that appropriately completes the request.\n\n### Instruction:\nhow are you\n\n"
        "### Response:\n"
    )
    assert alpaca_prompt("how are you", "today") == with_input
    assert alpaca_prompt("how are you") == without
    assert alpaca_prompt("{input}", "{instruction}\0").count("{instruction}\0") == 1
    shown = show_first([ROW], bitnet, "bitnet", prompt_style="alpaca")
    assert shown == f"<|begin_of_text|>{with_input}[fine, thank you<|eot_id|>]"


def test_a_model_without_a_template_gets_the_classic_prompts(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(write_directory(tmp_path))
    template = ChatTemplate.resolve(tokenizer)
    assert template.is_fallback
    example = build_examples(read_rows([ROW]), tokenizer, template, 1024).examples[0]
    assert "### Response:\n[fine" in show_example(example, tokenizer)


def test_chat_completion_and_text_rows(bitnet: Tokenizer) -> None:
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "fine", "weight": 0},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "fine"},
    ]
    assert show_first([{"messages": messages}], bitnet, "bitnet") == (
        "<|begin_of_text|>User: hello<|eot_id|>Assistant: fine<|eot_id|>"
        "User: hello<|eot_id|>Assistant: [fine<|eot_id|>]"
    )
    completion = {"prompt": "2 + 2 =", "completion": " 4<|eot_id|>"}
    assert show_first([completion], bitnet, "bitnet") == "<|begin_of_text|>2 + 2 =[ 4<|eot_id|><|eot_id|>]"
    assert show_first([{"text": "once upon"}], bitnet, "bitnet") == "<|begin_of_text|>[once upon<|eot_id|>]"


def test_marks_are_the_callers(bitnet: Tokenizer) -> None:
    example = Example(np.array(bitnet.encode("ab", False), np.int32), np.array([False, True]))
    assert show_example(example, bitnet, mark=lambda text: f"<b>{text}</b>") == "a<b>b</b>"


@pytest.mark.parametrize("with_bos", [True, False])
@pytest.mark.parametrize("max_seq_len", range(2, 14))
def test_too_long(with_bos: bool, max_seq_len: int) -> None:
    """Prompt 100 … 106, answer 200 … 203, of which the last is not trained."""
    tokens = ([1] if with_bos else []) + list(range(100, 107)) + list(range(200, 204))
    trained = np.isin(tokens, [200, 201, 202])
    example = Example(np.array(tokens, np.int32), trained, line=7)
    cut = fit(example, max_seq_len, bos_id=1)
    if max_seq_len < 5:  # BOS or one token of the prompt, and the answer
        assert cut is None
        return
    assert cut is not None
    assert len(cut) == min(max_seq_len, len(tokens))
    assert cut.tokens[cut.trained].tolist() == [200, 201, 202]
    assert cut.num_trained == 3
    assert cut.line == 7
    if with_bos:
        assert cut.tokens[0] == 1
        assert cut.tokens[1:].tolist() == tokens[len(tokens) - len(cut) + 1 :]
    else:
        assert cut.tokens.tolist() == tokens[-len(cut) :]


def test_cut_and_dropped_rows_are_counted(bitnet: Tokenizer) -> None:
    rows = read_rows(
        [
            {"prompt": "a b", "completion": "c"},
            {"prompt": "a " * 40, "completion": "c"},
            {"prompt": "a", "completion": "c " * 40},
        ]
    )
    template = ChatTemplate.resolve(bitnet, "bitnet")
    made = build_examples(rows, bitnet, template, 16)
    assert (len(made.examples), made.shortened, made.dropped, made.first_dropped_line) == (2, 1, 1, 3)
    assert [len(example) for example in made.examples] == [made.examples[0].tokens.size, 16]
    assert made.notes(16) == [
        "1 rows were cut from the left of the prompt to fit 16 tokens",
        "1 rows were left out: their answer does not fit 16 tokens (first at line 3)",
    ]
    with pytest.raises(DataError, match="none of 1 rows can be trained: no answer fits max_seq_len 16"):
        build_examples(rows[2:], bitnet, template, 16)
    with pytest.raises(ConfigError, match="max_seq_len: expected at least 2"):
        build_examples(rows, bitnet, template, 1)


def test_nothing_behind_the_last_target(chatml: Tokenizer) -> None:
    example = build_examples(read_rows([ROW]), chatml, ChatTemplate.resolve(chatml), 1024).examples[0]
    assert example.trained[-1]
    assert example.tokens[-1] == chatml.eos_id


@pytest.mark.parametrize("kind", ["bitnet", "chatml"])
def test_long_texts_become_several_examples(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    text = "once upon a time there were 123 cats. " * 5
    made = build_examples(read_rows([{"text": text}]), tokenizer, ChatTemplate.resolve(tokenizer, kind), 16)
    assert all(2 <= len(example) <= 16 for example in made.examples)
    targets = np.concatenate([example.tokens[1:][example.trained[1:]] for example in made.examples]).tolist()
    whole = [*tokenizer.encode(text, special=False), tokenizer.eos_id]
    assert targets == (whole if kind == "bitnet" else whole[1:])
    assert all(example.tokens[0] == tokenizer.bos_id for example in made.examples) or kind == "chatml"


def test_an_empty_answer_still_teaches_to_stop(bitnet: Tokenizer) -> None:
    assert show_first([ROW | {"output": ""}], bitnet, "bitnet").endswith("Assistant: [<|eot_id|>]")
