"""The engine: what it draws equals a computation without a cache, whatever was fed before."""

from __future__ import annotations

import numpy as np
import pytest

import tritune.generation.engines
from tiny_chat import prompt_of, strong_adapter
from tritune import ConfigError, ContextLengthError, Model
from tritune.generation import Engine, GenerationSettings
from tritune.generation.engine import rows_to_feed, token_set
from tritune.models.batch import Piece


def greedy(engine: Engine, prompt: list[int], count: int) -> list[int]:
    return [token.id for token in engine.generate(prompt, GenerationSettings(max_tokens=count))]


def fed_rows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each batch that goes through the model from now on."""
    counts: list[int] = []

    def counted(name: str) -> None:
        call = getattr(engine.state, name)

        def count(pieces: list[Piece], **options: bool) -> object:
            counts.append(sum(len(piece.tokens) for piece in pieces))
            return call(pieces, **options)

        monkeypatch.setattr(engine.state, name, count)

    for name in ("forward", "submit_and_sample", "feed_drawn"):
        counted(name)
    return counts


@pytest.mark.parametrize("adapted", [False, True])
def test_greedy_is_the_argmax_of_a_full_recomputation(float_model: Model, adapted: bool) -> None:
    adapter = strong_adapter(float_model) if adapted else None
    prompt, count = prompt_of(5), 12
    found = greedy(float_model.engine(adapter), prompt, count)
    for index, token in enumerate(found):
        logits = float_model.logits(prompt + found[:index], adapter)[-1]
        assert token == int(np.argmax(logits))
    assert len(set(found)) > 2


def test_greedy_of_the_rounded_model(model: Model) -> None:
    prompt = prompt_of(40, seed=1)
    found = greedy(model.engine(), prompt, 8)
    expected: list[int] = []
    for _ in range(8):
        expected.append(int(np.argmax(model.logits(prompt + expected)[-1])))
    assert found == expected


def test_log_probabilities_equal_the_training_loss_which_knows_no_cache(float_model: Model) -> None:
    adapter = strong_adapter(float_model)
    prompt = prompt_of(6)
    settings = GenerationSettings(max_tokens=6, temperature=0.8, top_k=40, repetition_penalty=1.2, seed=3)
    tokens = list(float_model.engine(adapter).generate(prompt, settings))
    sequence = prompt + [token.id for token in tokens]
    for index, token in enumerate(tokens, len(prompt)):
        trained = np.arange(index + 1) == index
        loss, _ = float_model.loss_and_gradients(sequence[: index + 1], trained, adapter)
        assert token.logprob == pytest.approx(-loss, abs=2e-4)


def test_a_long_prompt_in_chunks_equals_one_chunk(float_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(83)
    whole = greedy(float_model.engine(), prompt, 6)
    logits = float_model.logits(prompt)
    monkeypatch.setattr(tritune.generation.engines, "PREFILL_ROWS", 16)
    float_model._engines.clear()
    engine = float_model.engine()
    assert engine.state.max_rows == 16
    assert greedy(engine, prompt, 6) == whole
    np.testing.assert_allclose(float_model.logits(prompt), logits, atol=2e-4)


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [
        (200, 2048, [200]),
        (1100, 2048, [1024, 76]),
        (1700, 2048, [1700]),
        (600, 512, [512, 88]),
        (5000, 2048, [2048, 2048, 904]),
        (300, 2048, [256, 44]),
        (40, 16, [16, 16, 8]),
        (700, 1000, [512, 188]),
    ],
)
def test_few_rows_of_a_prompt_are_spare(count: int, limit: int, expected: list[int]) -> None:
    fed = []
    while count:
        fed.append(rows_to_feed(count, limit))
        count -= fed[-1]
    assert fed == expected


@pytest.mark.parametrize("length", [31, 32, 33, 64, 65])
def test_prompts_around_the_size_of_a_block(float_model: Model, length: int) -> None:
    prompt = prompt_of(length)
    found = greedy(float_model.engine(), prompt, 3)
    assert found[0] == int(np.argmax(float_model.logits(prompt)[-1]))
    assert found[2] == int(np.argmax(float_model.logits(prompt + found[:2])[-1]))


def test_only_what_is_new_is_fed(float_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = float_model.engine()
    prompt = prompt_of(20)
    first = greedy(engine, prompt, 4)
    counts = fed_rows(engine, monkeypatch)
    longer = prompt + first + prompt_of(7, seed=2)
    second = greedy(engine, longer, 3)
    assert counts == [1 + 7, 1, 1]  # the last token that was drawn had not been fed
    engine.sequence.truncate(0)
    assert greedy(engine, longer, 3) == second


def test_a_prompt_that_differs_early_is_fed_from_there(float_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = float_model.engine()
    prompt = prompt_of(20)
    greedy(engine, prompt, 4)
    other = [*prompt[:9], *prompt_of(6, seed=3)]
    counts = fed_rows(engine, monkeypatch)
    found = greedy(engine, other, 3)
    assert counts == [6, 1, 1]
    engine.sequence.truncate(0)
    assert greedy(engine, other, 3) == found


def test_the_same_prompt_again_feeds_its_last_token_only(float_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = float_model.engine()
    prompt = prompt_of(20)
    first = greedy(engine, prompt, 4)
    counts = fed_rows(engine, monkeypatch)
    assert greedy(engine, prompt, 4) == first
    assert counts == [1, 1, 1, 1]


def test_a_stream_that_was_dropped_leaves_the_engine_usable(float_model: Model) -> None:
    engine = float_model.engine()
    prompt = prompt_of(20)
    expected = greedy(engine, prompt, 6)
    stream = engine.generate(prompt_of(15, seed=5), GenerationSettings(max_tokens=50))
    next(stream)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert greedy(engine, prompt, 6) == expected


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interrupt_inside_of_a_forward_leaves_no_trace(
    float_model: Model, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The rows whose forward did not end are not taken for cached ones."""
    monkeypatch.setattr(tritune.generation.engines, "PREFILL_ROWS", 16)
    prompt = prompt_of(40)
    expected = greedy(float_model.engine(), prompt, 6)
    float_model._engines.clear()
    engine = float_model.engine()
    submit, calls = engine.state.backend.submit, iter(range(100))

    def interrupted(programs: object) -> None:
        if next(calls) == after:
            raise KeyboardInterrupt
        submit(programs)  # type: ignore[arg-type]

    engine.sequence.truncate(0)
    with monkeypatch.context() as patch:
        patch.setattr(engine.state.backend, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            greedy(engine, prompt, 6)
    assert greedy(engine, prompt, 6) == expected


def test_two_streams_of_one_engine_do_not_mix(float_model: Model) -> None:
    engine = float_model.engine()
    prompts = [prompt_of(12), prompt_of(14, seed=7)]
    settings = GenerationSettings(max_tokens=6, temperature=0.9, repetition_penalty=1.3, seed=4)
    expected = [[token.id for token in engine.generate(prompt, settings)] for prompt in prompts]
    streams = [engine.generate(prompt, settings) for prompt in prompts]
    found = [[], []]
    for _ in range(6):
        for stream, tokens in zip(streams, found, strict=True):
            tokens.append(next(stream).id)
    assert found == expected


def test_logits_between_two_tokens_change_nothing(float_model: Model) -> None:
    engine = float_model.engine()
    expected = greedy(engine, prompt_of(12), 5)
    found: list[int] = []
    for token in engine.generate(prompt_of(12), GenerationSettings(max_tokens=5)):
        found.append(token.id)
        float_model.logits(prompt_of(9, seed=8))
    assert found == expected


# -- ends -------------------------------------------------------------------------------------------------------------
def test_each_of_several_eos_ids_ends(float_model: Model) -> None:
    engine = float_model.engine()
    prompt = prompt_of(7)
    whole = list(dict.fromkeys(greedy(engine, prompt, 30)))
    for eos in whole[:4]:
        tokens = list(engine.generate(prompt, GenerationSettings(max_tokens=30, eos_ids=(419, eos))))
        assert tokens[-1].id == eos
        assert tokens[-1].finish_reason == "stop"
        assert all(token.finish_reason is None and token.id != eos for token in tokens[:-1])


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "repetition_penalty": 1.5, "seed": 9}])
def test_what_was_computed_beyond_the_end_leaves_no_trace(float_model: Model, settings: dict[str, float]) -> None:
    """After an eos and after a stream that was dropped, the same tokens come, in the same and in a longer text."""
    engine = float_model.engine()

    def drawn(prompt: list[int], count: int, eos: tuple[int, ...] = ()) -> list[int]:
        options = GenerationSettings(max_tokens=count, eos_ids=eos, **settings)  # type: ignore[arg-type]
        return [token.id for token in engine.generate(prompt, options)]

    prompt = prompt_of(7)
    whole = drawn(prompt, 40)
    cut = next(i for i, token in enumerate(whole) if i > 2 and token not in whole[:i])
    assert drawn(prompt, 40, (whole[cut],)) == whole[: cut + 1]
    assert engine.sequence.tokens == prompt + whole[:cut]
    longer = [*prompt, *whole[: cut + 1], *prompt_of(3, seed=6)]
    found = drawn(longer, 5)
    engine.sequence.truncate(0)
    assert drawn(longer, 5) == found
    stream = engine.generate(prompt, GenerationSettings(max_tokens=40, **settings))  # type: ignore[arg-type]
    assert [next(stream).id for _ in range(5)] == whole[:5]
    del stream
    assert drawn(prompt, 40) == whole


def test_max_tokens_ends_with_length(float_model: Model) -> None:
    tokens = list(float_model.engine().generate(prompt_of(7), GenerationSettings(max_tokens=3)))
    assert [token.finish_reason for token in tokens] == [None, None, "length"]


def test_an_eos_as_the_last_allowed_token_is_a_stop(float_model: Model) -> None:
    engine = float_model.engine()
    first = greedy(engine, prompt_of(7), 1)
    (token,) = engine.generate(prompt_of(7), GenerationSettings(max_tokens=1, eos_ids=tuple(first)))
    assert token.finish_reason == "stop"


# -- what is refused, before anything is run --------------------------------------------------------------------------
def test_the_context_is_used_to_its_last_position_and_no_further(float_model: Model) -> None:
    engine = float_model.engine()
    context = engine.context_length
    assert context == 256
    assert len(greedy(engine, prompt_of(context - 2), 2)) == 2
    with pytest.raises(ContextLengthError, match=r"prompt of 255 tokens and 2 new tokens make 257; .* holds 256"):
        engine.generate(prompt_of(255), GenerationSettings(max_tokens=2))


@pytest.mark.parametrize("prompt", [[], [3, -1], [3, 420]])
def test_a_prompt_that_cannot_be_fed(float_model: Model, prompt: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"the prompt is empty|prompt token (-1|420) is not in the vocabulary of 420"):
        float_model.engine().generate(prompt, GenerationSettings())


def test_token_set_has_a_bit_for_each_token() -> None:
    words = token_set([0, 31, 32, 69, 69], 70)
    assert words.dtype == np.uint32
    assert words.tolist() == [1 | 1 << 31, 1, 1 << 5]
