"""The built-in model: what its card says, checked with transformers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tritune.assets import BUILTIN_MODEL as MODEL

ANSWER_ROW = re.compile(r"^\| (.+[?.]) \| (.+[.]) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def reference() -> Iterator[tuple[Any, Any]]:
    """The model and its tokenizer in transformers, float32, with one torch thread."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    torch.nn.Module.float(model)
    yield model.eval(), AutoTokenizer.from_pretrained(MODEL)
    torch.set_num_threads(threads)


def stated_answers() -> list[tuple[str, str]]:
    """Prompts and greedy answers in the card."""
    return ANSWER_ROW.findall((MODEL / "README.md").read_text(encoding="utf-8"))


def test_logits_are_finite(reference: tuple[Any, Any]) -> None:
    import torch

    model, tokenizer = reference
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer("Once upon a time").input_ids])).logits
    assert logits.shape[-1] == 16384
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.1


def test_the_card_states_answers() -> None:
    assert len(stated_answers()) == 10


@pytest.mark.parametrize(("prompt", "answer"), stated_answers())
def test_greedy_answer_is_as_the_card_says(reference: tuple[Any, Any], prompt: str, answer: str) -> None:
    import torch

    model, tokenizer = reference
    chat = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        out = model.generate(**ids, do_sample=False, max_new_tokens=40, temperature=None, top_p=None)
    assert tokenizer.decode(out[0][ids["input_ids"].shape[1] :]) == answer + "<|im_end|>"


def test_assets_are_small_enough_to_travel() -> None:
    assert sum(file.stat().st_size for file in MODEL.parent.rglob("*") if file.is_file()) < 30e6
