"""Model: loading, logits, gradients, and text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_chat import END, VOCABULARY, make_chat_model, open_chat_model, prompt_of, strong_adapter
from tritune import (
    Adapter,
    AdapterError,
    ConfigError,
    ContextLengthError,
    InputError,
    LoRAConfig,
    Model,
    TextStream,
    TrainConfig,
    load,
    train,
)
from tritune.backends.base import Backend
from tritune.backends.numpy import NumpyBackend
from tritune.calls import generate
from tritune.generation import Token


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def model(path: Path, backend: Backend) -> Model:
    """On numpy, then on WebGPU, without int8 rounding."""
    return open_chat_model(path, backend, activations="float")


@pytest.fixture
def numpy_model(path: Path) -> Model:
    return open_chat_model(path, NumpyBackend(), activations="float")


# -- load -------------------------------------------------------------------------------------------------------------
def test_load_gives_the_built_in_model() -> None:
    model = load(device="numpy")
    assert model.config.num_layers == 12
    assert model.name == "tritune-stories-45m"
    assert model.context_length == 1024
    assert not model.template.is_fallback
    model.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activations": "int4"}, "activations 'int4': expected int8 or float"),
        ({"kv_dtype": "bf16"}, "kv_dtype 'bf16': expected f16 or f32"),
        ({"context": 0}, "context: expected a number >= 1, found 0"),
        ({"device": "abacus"}, "abacus"),
        ({"path_or_id": "nowhere/at/all"}, "nowhere/at/all"),
    ],
)
def test_what_load_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        load(**({"device": "numpy", "progress": False} | options))
    assert "\n" not in str(caught.value)


def test_the_context_that_was_asked_for_is_the_limit(path: Path) -> None:
    model = load(path, "numpy", context=100)
    assert model.context_length == 100
    prompt = prompt_of(90)
    assert model.stream(prompt, ignore_eos=True, max_tokens=10).num_prompt_tokens == 90
    with pytest.raises(ContextLengthError, match=r"90 tokens and 11 new tokens make 101; the context holds 100"):
        model.generate(prompt, max_tokens=11)
    with pytest.raises(ContextLengthError, match="101 tokens; the context holds 100"):
        model.logits(prompt_of(101))
    with pytest.raises(ContextLengthError, match=r"90 tokens and 11 new tokens make 101; the context holds 100"):
        generate(model.engine(), prompt, max_tokens=11)
    stream = model.stream(prompt, max_tokens=None, ignore_eos=True)
    stream.read()
    assert (stream.num_tokens, stream.finish_reason) == (10, "length")
    with pytest.raises(ContextLengthError, match="a prompt of 100 tokens leaves no room in the context of 100"):
        model.generate(prompt_of(100))


# -- logits -----------------------------------------------------------------------------------------------------------
def test_logits_have_a_row_for_each_token_and_see_no_later_one(model: Model) -> None:
    tokens = prompt_of(70)
    whole = model.logits(tokens)
    assert (whole.dtype, whole.shape) == (np.float32, (70, VOCABULARY))
    np.testing.assert_allclose(model.logits(tokens[:33]), whole[:33], atol=2e-4)


def test_logits_do_not_depend_on_what_was_done_before(model: Model) -> None:
    tokens = prompt_of(20)
    adapter = strong_adapter(model)
    base, adapted = model.logits(tokens), model.logits(tokens, adapter)
    assert np.abs(base - adapted).max() > 0.01
    model.generate(prompt_of(30, seed=1), adapter, max_tokens=5)
    np.testing.assert_array_equal(model.logits(tokens), base)
    model.generate(prompt_of(30, seed=1), max_tokens=5)
    np.testing.assert_array_equal(model.logits(tokens, adapter), adapted)


def test_a_fresh_adapter_changes_nothing(model: Model) -> None:
    fresh = Adapter.create(model, LoRAConfig(rank=3))
    np.testing.assert_array_equal(model.logits(prompt_of(9), fresh), model.logits(prompt_of(9)))


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ([], ConfigError, "no tokens: the sequence is empty"),
        ([3, VOCABULARY], ConfigError, f"token {VOCABULARY} is not in the vocabulary of {VOCABULARY}"),
        ([-1], ConfigError, "token -1 is not"),
        ([5] * 257, ContextLengthError, "257 tokens; the context holds 256"),
    ],
)
def test_tokens_that_are_refused(numpy_model: Model, tokens: list[int], error: type[Exception], message: str) -> None:
    adapter = strong_adapter(numpy_model)
    with pytest.raises(error, match=message):
        numpy_model.logits(tokens)
    with pytest.raises(error, match=message):
        numpy_model.loss_and_gradients(tokens, [True] * len(tokens), adapter)
    with pytest.raises(error, match=r"no tokens|is not in the vocabulary|257 tokens"):
        numpy_model.generate(tokens)


def test_an_adapter_of_another_size_is_refused(numpy_model: Model, tmp_path: Path) -> None:
    other = open_chat_model(make_chat_model(tmp_path, hidden=64), NumpyBackend())
    for adapter in (strong_adapter(other), strong_adapter(other, rank=2)):
        for use in (
            lambda adapter=adapter: numpy_model.logits([3], adapter),
            lambda adapter=adapter: numpy_model.generate([3], adapter),
            lambda adapter=adapter: numpy_model.loss_and_gradients([3, 4], [False, True], adapter),
        ):
            with pytest.raises(AdapterError, match="made for hidden_size 64, this base has 32"):
                use()


# -- gradients --------------------------------------------------------------------------------------------------------
def test_the_loss_is_the_mean_over_the_trained_tokens(model: Model) -> None:
    tokens = prompt_of(11)
    adapter = strong_adapter(model)
    before = adapter.parameters.copy()
    trained = np.zeros(11, bool)
    trained[[0, 3, 4, 10]] = True  # the first is predicted from nothing, so it is no target
    logits = model.logits(tokens, adapter).astype(np.float64)
    nll = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(11), np.roll(tokens, -1)]
    loss, gradients = model.loss_and_gradients(tokens, trained, adapter)
    assert loss == pytest.approx(nll[[2, 3, 9]].mean(), rel=1e-5)
    assert {name: g.shape for name, g in gradients.items()} == {n: t.shape for n, t in adapter.tensors().items()}
    assert all(g.dtype == np.float32 and np.abs(g).max() > 0 for g in gradients.values())
    assert np.array_equal(adapter.parameters, before)
    trained[0] = False
    again, same = model.loss_and_gradients(tokens, trained.tolist(), adapter)
    assert again == loss
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(same[name], gradient)


def test_the_gradient_of_several_targets_is_the_mean_of_each_alone(model: Model) -> None:
    tokens, adapter = prompt_of(9), strong_adapter(model)
    flags = np.eye(9, dtype=bool)
    loss, whole = model.loss_and_gradients(tokens, flags[2] | flags[7], adapter)
    alone = [model.loss_and_gradients(tokens, flags[i], adapter) for i in (2, 7)]
    assert loss == pytest.approx((alone[0][0] + alone[1][0]) / 2, rel=1e-5)
    for name, gradient in whole.items():
        expected = (alone[0][1][name] + alone[1][1][name]) / 2
        np.testing.assert_allclose(gradient, expected, atol=1e-5 * np.abs(expected).max() + 1e-7, err_msg=name)


def test_a_gradient_does_not_depend_on_what_the_state_did_before(model: Model) -> None:
    tokens, trained = prompt_of(9), [True] * 9
    adapter, other = strong_adapter(model), strong_adapter(model, seed=1)
    loss, expected = model.loss_and_gradients(tokens, trained, adapter)
    train(model, [{"text": "hello there"}], config=TrainConfig(max_steps=2, lr=1e-2), adapter=adapter)
    model.loss_and_gradients(prompt_of(15, seed=2), [True] * 15, other)
    found_loss, found = model.loss_and_gradients(tokens, trained, adapter)
    assert found_loss == loss
    for name, gradient in expected.items():
        np.testing.assert_array_equal(found[name], gradient, err_msg=name)


def test_keeping_everything_gives_the_same_gradient_as_recomputing(model: Model) -> None:
    tokens, trained, adapter = prompt_of(9), [True] * 9, strong_adapter(model)
    _, expected = model.loss_and_gradients(tokens, trained, adapter)
    _, found = model.loss_and_gradients(tokens, trained, adapter, recompute=False)
    for name, gradient in expected.items():
        np.testing.assert_array_equal(found[name], gradient, err_msg=name)


def test_layers_below_start_layer_get_zeros_and_those_above_what_they_always_get(model: Model) -> None:
    tokens, trained, adapter = prompt_of(9), [True] * 9, strong_adapter(model)
    _, expected = model.loss_and_gradients(tokens, trained, adapter)
    _, found = model.loss_and_gradients(tokens, trained, adapter, start_layer=1)
    for name, gradient in expected.items():
        if ".layers.0." in name:
            assert not found[name].any(), name
        else:
            np.testing.assert_array_equal(found[name], gradient, err_msg=name)


def test_what_loss_and_gradients_refuses(numpy_model: Model) -> None:
    adapter = strong_adapter(numpy_model)
    for trained, message in (
        ([True] * 4, r"expected 5 flags, one for each token, found shape \(4,\)"),
        ([True] + [False] * 4, "no token is a target"),
        ([False] * 5, "no token is a target"),
    ):
        with pytest.raises(ConfigError, match=message):
            numpy_model.loss_and_gradients(prompt_of(5), trained, adapter)
    with pytest.raises(ConfigError, match="no token is a target"):
        numpy_model.loss_and_gradients([3], [True], adapter)
    for layer in (-1, 2):
        with pytest.raises(ConfigError, match=rf"start_layer {layer}: the model has layers 0 … 1"):
            numpy_model.loss_and_gradients(prompt_of(5), [True] * 5, adapter, start_layer=layer)


# -- prompts ----------------------------------------------------------------------------------------------------------
def test_a_text_is_one_user_turn_unless_it_is_raw(numpy_model: Model) -> None:
    encode, tokenizer = numpy_model.encode_prompt, numpy_model.tokenizer
    turn = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert encode("hi") == tokenizer.encode(turn, special=True)
    assert encode("hi") == encode([{"role": "user", "content": "hi"}])
    assert encode("hi", raw=True) == tokenizer.encode("hi", special=True)
    assert encode("a<|im_end|>b", raw=True).count(END) == 1
    assert encode("a<|im_end|>b").count(END) == 1  # only the template's own
    assert encode([5, 6, 7]) == [5, 6, 7]
    assert encode(np.array([5, 6, 7])) == [5, 6, 7]  # type: ignore[arg-type]


def test_an_empty_raw_prompt_is_refused(numpy_model: Model) -> None:
    with pytest.raises(ConfigError, match="empty"):
        numpy_model.generate("", raw=True)
    with pytest.raises(InputError):
        numpy_model.generate([{"role": "nobody", "content": "hi"}])


@pytest.mark.parametrize(
    "prompt", [[3, {"role": "user", "content": "hi"}], ["hi", "there"], [3, 4.5], [None], [True, 3]]
)
def test_a_prompt_of_another_kind_is_refused_in_one_line(numpy_model: Model, prompt: Any) -> None:
    with pytest.raises(ConfigError, match=r"^prompt: expected text, chat messages or token ids, found ") as caught:
        numpy_model.generate(prompt)
    assert "\n" not in str(caught.value)


# -- text -------------------------------------------------------------------------------------------------------------
def test_streamed_pieces_are_the_generated_text(model: Model) -> None:
    adapter = strong_adapter(model)
    for given in (None, adapter):
        for options in ({}, {"temperature": 0.9, "seed": 4}, {"temperature": 1.0, "top_k": 50, "seed": 5}):
            stream = model.stream("hello", given, max_tokens=25, ignore_eos=True, **options)
            pieces = list(stream)
            text = model.generate("hello", given, max_tokens=25, ignore_eos=True, **options)
            assert "".join(pieces) == text
            assert len(pieces) > 3
            assert text == model.tokenizer.decode(stream.token_ids)
            assert stream.num_tokens == len(stream.token_ids) == 25
            assert stream.finish_reason == "length"
            assert stream.num_prompt_tokens == len(model.encode_prompt("hello"))


def tokens_of(model: Model, ids: list[int], last: str = "length") -> Iterator[Token]:
    for index, token in enumerate(ids):
        yield Token(token, 0.0, last if index == len(ids) - 1 else None)  # type: ignore[arg-type]


SAID = "Grüße 🙂 𝄞 über 東京!\nUser: no"


def test_no_piece_ever_holds_half_a_character(numpy_model: Model) -> None:
    tokenizer = numpy_model.tokenizer
    ids = [token for part in SAID for token in tokenizer.encode(part, special=False)]
    assert len(ids) > len(SAID) + 4  # several characters take several tokens
    stream = TextStream(tokenizer, tokens_of(numpy_model, ids), [], 1)
    pieces = list(stream)
    assert "".join(pieces) == SAID
    assert not any("\ufffd" in piece for piece in pieces)
    assert stream.finish_reason == "length"


def test_text_ends_where_any_stop_string_begins(numpy_model: Model) -> None:
    tokenizer = numpy_model.tokenizer
    ids = tokenizer.encode(SAID, special=False)
    for start in range(len(SAID)):
        for length in (1, 2, 5):
            stop = SAID[start : start + length]
            stream = TextStream(tokenizer, tokens_of(numpy_model, ids), [stop, "never said"], 1)
            assert "".join(stream) == SAID[: SAID.find(stop)]
            assert stream.finish_reason == "stop"


def test_an_eos_is_no_text_and_what_was_held_back_for_a_stop_comes_out(numpy_model: Model) -> None:
    ids = [*numpy_model.tokenizer.encode("well, Us", special=False), END]
    stream = TextStream(numpy_model.tokenizer, tokens_of(numpy_model, ids, "stop"), ["User:"], 1)
    assert stream.read() == "well, Us"
    assert stream.finish_reason == "stop"
    assert stream.read() == ""
    ids = numpy_model.tokenizer.encode("well, yes", special=False)
    stream = TextStream(numpy_model.tokenizer, tokens_of(numpy_model, ids, "stop"), [], 1)
    assert stream.read() == numpy_model.tokenizer.decode(ids[:-1])  # also an eos that is an ordinary token


def test_stop_strings_in_generation(model: Model) -> None:
    text = model.generate("hello", max_tokens=30, ignore_eos=True)
    stop = text[5:8]
    stream = model.stream("hello", max_tokens=30, ignore_eos=True, stop=[stop])
    assert stream.read() == text[: text.find(stop)]
    assert stream.finish_reason == "stop"
    assert stream.num_tokens < 30
    assert model.generate("hello", max_tokens=30, ignore_eos=True, stop=stop) == text[: text.find(stop)]
    assert model.generate("hello", max_tokens=30, ignore_eos=True) == text
    with pytest.raises(ConfigError, match="a stop string must not be empty"):
        model.generate("hello", stop=[""])


def test_eos_ids_of_the_model_end_an_answer(path: Path, tmp_path: Path) -> None:
    plain = open_chat_model(path, NumpyBackend())
    ids = plain.stream("hello", max_tokens=40, ignore_eos=True)
    ids.read()
    for eos in (ids.token_ids[6], ids.token_ids[12]):
        model = open_chat_model(make_chat_model(tmp_path / str(eos), {"eos_token_id": [1, eos]}), NumpyBackend())
        stream = model.stream("hello", max_tokens=40)
        stream.read()
        assert stream.finish_reason == "stop"
        assert stream.token_ids == ids.token_ids[: ids.token_ids.index(eos) + 1]
        assert stream.read() == ""
        stream = model.stream("hello", max_tokens=40, ignore_eos=True)
        stream.read()
        assert stream.token_ids == ids.token_ids
        assert stream.finish_reason == "length"


def test_an_unknown_option_is_refused(numpy_model: Model) -> None:
    with pytest.raises(TypeError, match="temprature"):
        numpy_model.generate("hello", temprature=1.0)
    with pytest.raises(ConfigError, match="max_tokens: expected a whole number, found '5'"):
        numpy_model.generate("hello", max_tokens="5")


# -- the model's own generation_config --------------------------------------------------------------------------------
OWN = {
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 11,
    "top_p": 0.9,
    "min_p": 0.05,
    "repetition_penalty": 1.2,
    "max_new_tokens": 17,
    "eos_token_id": [7, 8],
}


def test_none_means_the_models_own_settings(tmp_path: Path) -> None:
    model = open_chat_model(make_chat_model(tmp_path, OWN), NumpyBackend())
    own = model.settings(5)
    assert (own.temperature, own.top_k, own.top_p, own.min_p) == (0.7, 11, 0.9, 0.05)
    assert (own.repetition_penalty, own.max_tokens, own.eos_ids) == (1.2, 17, (7, 8, END, 0))
    assert model.settings(250).max_tokens == 6  # what the context has room for
    given = model.settings(
        5, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, max_tokens=3, ignore_eos=True
    )
    assert (given.temperature, given.top_k, given.top_p, given.min_p) == (0.0, 0, 1.0, 0.0)
    assert (given.repetition_penalty, given.max_tokens, given.eos_ids) == (1.0, 3, ())
    assert model.stream("hello", max_tokens=None, ignore_eos=True).read() != ""
    stream = model.stream("hello", ignore_eos=True)
    stream.read()
    assert stream.num_tokens == 17


@pytest.mark.parametrize(
    ("own", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 0.6}, 0.0),
        ({"do_sample": False, "temperature": 0.6}, 0.0),
        ({"do_sample": True}, 1.0),
    ],
)
def test_the_models_own_temperature(tmp_path: Path, own: dict[str, Any], temperature: float) -> None:
    settings = open_chat_model(make_chat_model(tmp_path, own), NumpyBackend()).settings(5)
    assert settings.temperature == temperature
    assert (settings.top_k, settings.top_p, settings.min_p, settings.repetition_penalty) == (0, 1.0, 0.0, 1.0)
    assert settings.max_tokens == 251  # 256 at most, and the context has room for 251
    assert settings.eos_ids == (END, 0)


# -- engines ----------------------------------------------------------------------------------------------------------
def said(model: Model, adapter: Adapter | None = None) -> list[int]:
    stream = model.stream("hello", adapter, max_tokens=12, ignore_eos=True, temperature=1.5)
    stream.read()
    return stream.token_ids


def test_base_and_adapter_take_turns(model: Model) -> None:
    adapter = strong_adapter(model)
    base, adapted = said(model), said(model, adapter)
    assert base != adapted
    for _ in range(2):
        assert said(model, adapter) == adapted
        assert said(model) == base
    assert model.engine(adapter) is model.engine(adapter.copy())
    assert model.engine() is model.engine(None)


def test_an_adapter_that_was_changed_is_another_one(model: Model) -> None:
    adapter, changed = strong_adapter(model), strong_adapter(model, seed=3)
    first = said(model, adapter)
    engine = model.engine(adapter)
    expected = said(model, changed)
    adapter.parameters[:] = changed.parameters
    assert model.engine(adapter) is not engine
    assert said(model, adapter) == expected != first


def test_long_prompts_of_base_and_adapter_share_the_cache(model: Model) -> None:
    """The cache has room for one whole context, so each takes all of it in turn."""
    adapter = strong_adapter(model)
    prompt = prompt_of(250)
    expected = [model.generate(prompt, given, max_tokens=6, ignore_eos=True) for given in (None, adapter)]
    streams = [model.stream(prompt, given, max_tokens=6, ignore_eos=True) for given in (None, adapter)]
    for _ in range(6):
        for stream in streams:  # also side by side
            next(iter(stream), None)
    assert [model.tokenizer.decode(stream.token_ids) for stream in streams] == expected
    assert model.generate(prompt, strong_adapter(model, seed=1), max_tokens=6, ignore_eos=True)
    del streams
    assert model._engines.cache.free_blocks == 0  # held by the last engine alone
    model.engine()
    assert model._engines.cache.free_blocks == 8
