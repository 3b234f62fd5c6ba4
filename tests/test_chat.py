"""Chat: a conversation that remembers, and feeds only what is new."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_chat import END, make_chat_model, open_chat_model, strong_adapter
from tritune import Chat, ContextLengthError, Model
from tritune.backends.base import Backend
from tritune.models.batch import Piece, RowBuffers

QUESTIONS = ["hello there", "how are you today?", "tell me a story 🙂"]
OPTIONS = {"max_tokens": 9, "temperature": 1.5, "seed": 3}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture
def model(path: Path, backend: Backend) -> Model:
    return open_chat_model(path, backend, activations="float")


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each batch that goes through a model."""
    counts: list[int] = []
    write = RowBuffers.write

    def counted(self: RowBuffers, pieces: list[Piece], count: int) -> None:
        counts.append(sum(len(piece.tokens) for piece in pieces))
        write(self, pieces, count)

    monkeypatch.setattr(RowBuffers, "write", counted)
    return counts


def say(chat: Chat, text: str) -> str:
    return "".join(chat.say(text))


@pytest.mark.parametrize("adapted", [False, True])
def test_answers_equal_those_to_the_whole_conversation_at_once(model: Model, path: Path, adapted: bool) -> None:
    adapter = strong_adapter(model) if adapted else None
    chat = Chat(model, adapter, "You are brief.", **OPTIONS)
    for count, question in enumerate(QUESTIONS, 1):
        before = list(chat.messages)
        answer = say(chat, question)
        fresh = open_chat_model(path, model.backend, activations="float")
        assert answer == fresh.generate([*before, {"role": "user", "content": question}], adapter, **OPTIONS)
        assert len(chat.messages) == 1 + 2 * count
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 3]


def test_a_turn_feeds_only_what_is_new(model: Model, fed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is made of tokens that its text is encoded to again, as the answers of a trained model are.

    The device does not know the scripted tokens, so it must not go on without the host.
    """
    monkeypatch.setattr(model.backend, "asynchronous", False)
    chat = Chat(model, None, "You are brief.", max_tokens=6)
    encode = model.tokenizer.encode
    answer = encode("I am fine", special=False)
    assert 1 < len(answer) < 6
    for turn, question in enumerate(QUESTIONS):
        del fed[:]
        prompt = model.encode_prompt([*chat.messages, {"role": "user", "content": question}])
        held = len(model.engine().sequence.tokens)
        _force(model, answer)
        assert say(chat, question) == "I am fine"
        assert fed[0] == len(prompt) - held
        if turn:
            # <|im_end|> was drawn but not fed; a line break follows it, then the user's turn and the header
            new = f"\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            assert fed[0] == 1 + len(encode(new, special=True))
        assert fed[1:] == [1] * len(answer)  # the last of them is the one that <|im_end|> was drawn after


def _force(model: Model, answer: list[int]) -> None:
    """Make the engine draw the answer and <|im_end|>, whatever the logits are."""
    state = model.engine().state
    real = type(state).drawn.__get__(state)
    script = iter([*answer, END])

    def scripted(count: int, **options: bool) -> object:
        drawn = real(count, **options)
        drawn.tokens[0] = next(script)
        return drawn

    state.drawn = scripted  # type: ignore[method-assign]


def test_a_chat_that_was_reset_begins_anew(model: Model) -> None:
    chat = Chat(model, None, "You are brief.", **OPTIONS)
    first = say(chat, QUESTIONS[0])
    say(chat, QUESTIONS[1])
    chat.reset()
    assert chat.messages == [{"role": "system", "content": "You are brief."}]
    assert say(chat, QUESTIONS[0]) == first


def test_the_system_prompt_matters(model: Model) -> None:
    answers = {say(Chat(model, None, system, **OPTIONS), "hello") for system in (None, "You are brief.", "Be rude.")}
    assert len(answers) == 3
    assert Chat(model).messages == []


def test_an_interrupted_answer_is_remembered_as_far_as_it_went(model: Model, path: Path) -> None:
    chat = Chat(model, None, **OPTIONS)
    answer = chat.say("hello")
    pieces = [next(answer), next(answer)]
    answer.close()  # type: ignore[attr-defined]
    assert chat.messages == [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "".join(pieces)}]
    asked = [*chat.messages, {"role": "user", "content": "go on"}]
    fresh = open_chat_model(path, model.backend, activations="float")
    assert say(chat, "go on") == fresh.generate(asked, **OPTIONS)


def test_an_interrupt_inside_of_the_model_leaves_the_chat_usable(
    model: Model, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(model, None, **OPTIONS)
    submit, calls = model.backend.submit, iter(range(1000))

    def interrupted(programs: object) -> None:
        if next(calls) == 4:
            raise KeyboardInterrupt
        submit(programs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(model.backend, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            say(chat, "hello")
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    asked = [*chat.messages, {"role": "user", "content": "go on"}]
    fresh = open_chat_model(path, model.backend, activations="float")
    assert say(chat, "go on") == fresh.generate(asked, **OPTIONS)


def test_a_turn_that_was_never_answered_is_not_remembered(model: Model) -> None:
    chat = Chat(model, None, **OPTIONS)
    with pytest.raises(ContextLengthError, match="the context holds 256"):
        chat.say("hello " * 300)
    assert chat.messages == []
    say(chat, "hello")
    assert len(chat.messages) == 2


def test_the_last_stream_says_why_it_ended(model: Model) -> None:
    chat = Chat(model, None, **OPTIONS)
    text = say(chat, "hello")
    assert chat.last is not None
    assert chat.last.finish_reason == "length"
    assert chat.last.num_tokens == 9
    assert chat.messages[-1]["content"] == text


def test_a_chat_outgrows_the_context_with_an_error_and_goes_on_after_a_reset(model: Model) -> None:
    chat = Chat(model, None, **OPTIONS)
    with pytest.raises(ContextLengthError, match=r"\d+ tokens"):
        for _ in range(30):
            say(chat, "hello there my friend")
    kept = list(chat.messages)
    assert len(kept) >= 4
    assert kept[-1]["role"] == "assistant"
    chat.reset()
    assert say(chat, "hello")
