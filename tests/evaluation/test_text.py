"""Perplexity: every token but the first is scored once, with the context that the stride leaves it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tiny_chat import prompt_of
from tritune import ConfigError, DataError, Model, evaluate
from tritune.evaluation.scorer import Scorer
from tritune.evaluation.text import Perplexity

TEXT = "It's a story: once upon a time there were 123 cats and 4567 dogs.\n\n" * 9


def windows(length: int, max_length: int, stride: int) -> Perplexity:
    return Perplexity(np.array(prompt_of(length), np.int32), max_length, stride, 1)


@pytest.mark.parametrize("stride", [1, 3, 7, 8])
@pytest.mark.parametrize("length", [2, 7, 8, 9, 16, 17, 33])
def test_every_token_counts_once_with_enough_before_it(length: int, stride: int) -> None:
    made = windows(length, 8, stride)
    examples = list(made.examples())
    assert len(examples) == made.count
    scored = [0] * length
    for index, example in enumerate(examples):
        assert 1 <= len(example) <= 8
        for at in np.flatnonzero(example.trained).tolist():
            assert example.tokens[at] == made.tokens[index * stride + at]
            if at > 0:
                scored[index * stride + at] += 1
                assert at >= min(8 - stride, index * stride + at)
    unseen = set(range(8, length, 8)) if stride == 8 else set()  # nothing stands before them in their window
    assert scored == [0 if at == 0 or at in unseen else 1 for at in range(length)]


def test_equals_one_pass_where_the_window_holds_the_text(numpy_model: Model, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    ids = numpy_model.tokenizer.encode_prompt(TEXT, special=False)
    logits = numpy_model.logits(ids).astype(np.float64)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -logp[np.arange(len(ids) - 1), ids[1:]]
    found = evaluate(numpy_model, tmp_path / "text.txt").results["base"]
    assert found["tokens"] == len(ids) - 1
    assert found["loss"] == pytest.approx(nll.mean(), rel=1e-4)
    assert found["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=1e-3)
    assert found["bits_per_byte"] == pytest.approx(nll.sum() / math.log(2) / len(TEXT.encode()), rel=1e-4)


def test_a_short_last_window_does_not_weigh_as_much_as_a_full_one(numpy_model: Model) -> None:
    """A mean of the windows' means would count the few tokens of the last one as many."""
    made = windows(70, 64, 64)
    scores = list(Scorer(numpy_model).score(made.examples()))
    nll = np.concatenate([score.nll for score in scores])
    assert [len(score.nll) for score in scores] == [63, 5]
    assert made.metrics(scores)["loss"] == pytest.approx(float(nll.mean()), rel=1e-6)
    assert abs(nll.mean() - np.mean([score.nll.mean() for score in scores])) > 0.01


def test_windows_and_limit(numpy_model: Model) -> None:
    whole = Perplexity.of(TEXT, numpy_model.tokenizer, 32)
    assert whole.stride == 16
    cut = Perplexity.of(TEXT, numpy_model.tokenizer, 32, 8, limit=3)
    assert (cut.count, len(cut.tokens)) == (3, 48)
    assert TEXT.startswith(numpy_model.tokenizer.decode(cut.tokens.tolist()))
    assert cut.num_bytes == len(numpy_model.tokenizer.decode(cut.tokens.tolist()).encode())


def test_special_tokens_in_a_text_are_text(numpy_model: Model) -> None:
    made = Perplexity.of("a<|im_end|>b", numpy_model.tokenizer, 32)
    assert not any(numpy_model.tokenizer.is_special(token) for token in made.tokens.tolist())


@pytest.mark.parametrize(("max_length", "stride"), [(32, 0), (32, 33), (32, -1), (1, None), (1025, None)])
def test_settings_that_cannot_be(numpy_model: Model, tmp_path: Path, max_length: int, stride: int | None) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    with pytest.raises(ConfigError, match="expected"):
        evaluate(numpy_model, tmp_path / "text.txt", max_length=max_length, stride=stride)


@pytest.mark.parametrize("content", [b"", b" \n", b"a", b"\xff\xfea\0", b"fine\n\xe9t\xe9\n"])
def test_texts_that_cannot_be(numpy_model: Model, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(DataError) as error:
        evaluate(numpy_model, tmp_path / "text.txt")
    assert "\n" not in str(error.value)
    assert "text" in str(error.value)


def test_a_byte_order_mark_is_no_text(numpy_model: Model, tmp_path: Path) -> None:
    for name, mark in (("with.txt", b"\xef\xbb\xbf"), ("without.txt", b"")):
        (tmp_path / name).write_bytes(mark + TEXT.encode())
    one, other = (evaluate(numpy_model, tmp_path / name).results for name in ("with.txt", "without.txt"))
    assert one == other
