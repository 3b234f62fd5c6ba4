"""Sampling through the engine: which tokens can come, by transformers' own processors, and how often."""

from __future__ import annotations

import numpy as np
import pytest

from tiny_chat import prompt_of
from tritune import Model
from tritune.generation import GenerationSettings

PROMPT = prompt_of(9, seed=4)
SETTINGS = {
    "top-k": {"temperature": 1.5, "top_k": 4},
    "top-p": {"temperature": 0.6, "top_p": 0.5},
    "min-p": {"temperature": 0.7, "min_p": 0.3},
    "cold": {"temperature": 0.2, "top_p": 0.9},
    "penalty": {"temperature": 0.5, "top_k": 5, "repetition_penalty": 3.0},
    "all": {"temperature": 0.9, "top_k": 12, "top_p": 0.6, "min_p": 0.1, "repetition_penalty": 1.3},
}


def warped(logits: np.ndarray, prompt: list[int], options: dict[str, float]) -> np.ndarray:
    """Probabilities [V] after transformers' processors, in the order in which its generate applies them."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    steps = [
        ("repetition_penalty", lambda v: transformers.RepetitionPenaltyLogitsProcessor(v)),
        ("temperature", lambda v: transformers.TemperatureLogitsWarper(v)),
        ("top_k", lambda v: transformers.TopKLogitsWarper(int(v))),
        ("top_p", lambda v: transformers.TopPLogitsWarper(v)),
        ("min_p", lambda v: transformers.MinPLogitsWarper(v)),
    ]
    scores = torch.tensor(logits[None])
    for name, make in steps:
        if name in options:
            scores = make(options[name])(torch.tensor([prompt]), scores)
    return torch.softmax(scores.double(), dim=-1)[0].numpy()


def draws(model: Model, count: int, **options: float) -> np.ndarray:
    """The first token after PROMPT, for ``count`` seeds."""
    engine = model.engine()
    tokens = [
        next(engine.generate(PROMPT, GenerationSettings(max_tokens=1, seed=seed, **options))).id  # type: ignore[arg-type]
        for seed in range(count)
    ]
    return np.array(tokens)


@pytest.mark.parametrize("name", SETTINGS)
def test_only_what_transformers_keeps_is_drawn(model: Model, name: str) -> None:
    options = SETTINGS[name]
    expected = warped(model.logits(PROMPT)[-1], PROMPT, options)
    support = set(np.flatnonzero(expected > 0).tolist())
    assert 1 < len(support) < 60  # else the case shows nothing
    found = set(draws(model, 120, **options).tolist())
    assert found <= support
    assert found >= set(np.flatnonzero(expected > 0.06).tolist())  # missing one by chance: 6e-4


def test_frequencies_are_those_of_the_warped_softmax(numpy_model: Model) -> None:
    options = {"temperature": 1.2, "top_k": 6, "repetition_penalty": 1.2}
    expected = warped(numpy_model.logits(PROMPT)[-1], PROMPT, options)
    kept, count = np.flatnonzero(expected), 1000
    found = np.bincount(draws(numpy_model, count, **options), minlength=len(expected))[kept]
    chi_square = np.sum((found - count * expected[kept]) ** 2 / (count * expected[kept]))
    assert len(kept) == 6
    assert chi_square < 20.5  # beyond it: one in a thousand, with 5 degrees of freedom


def test_frequencies_over_the_steps_of_one_stream(numpy_model: Model) -> None:
    """At a very high temperature every token is equally likely at every step, so the steps must not repeat draws."""
    settings = GenerationSettings(max_tokens=240, temperature=1e6, seed=11)
    tokens = [token.id for token in numpy_model.engine().generate(PROMPT, settings)]
    quarters = np.bincount(np.array(tokens) // 105, minlength=4)
    assert np.sum((quarters - 60) ** 2 / 60) < 16.3  # one in a thousand, 3 degrees of freedom
    assert len(set(tokens)) > 150


def test_seeds(model: Model) -> None:
    engine = model.engine()

    def run(seed: int) -> list[int]:
        settings = GenerationSettings(max_tokens=12, temperature=1.0, seed=seed)
        return [token.id for token in engine.generate(PROMPT, settings)]

    assert run(5) == run(5)
    assert len({tuple(run(seed)) for seed in range(5)}) == 5


def test_the_same_seed_draws_the_same_on_both_backends(model: Model, numpy_model: Model) -> None:
    settings = GenerationSettings(max_tokens=10, temperature=0.8, top_p=0.9, seed=6)
    found = [token.id for token in model.engine().generate(PROMPT, settings)]
    assert found == [token.id for token in numpy_model.engine().generate(PROMPT, settings)]


def test_the_repetition_penalty_knows_prompt_and_answer(model: Model) -> None:
    """With a huge penalty nothing comes twice, and nothing of the prompt."""
    settings = GenerationSettings(max_tokens=60, repetition_penalty=1e6)
    found = [token.id for token in model.engine().generate(PROMPT, settings)]
    assert len(set(found)) == len(found)
    assert not set(found) & set(PROMPT)


def test_log_probabilities_are_of_the_unchanged_distribution(model: Model) -> None:
    settings = GenerationSettings(max_tokens=1, temperature=0.3, top_k=3, repetition_penalty=2.0, seed=1)
    (token,) = model.engine().generate(PROMPT, settings)
    logits = model.logits(PROMPT)[-1].astype(np.float64)
    expected = logits[token.id] - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
    # The CPU sums over the rough values of tokens that cannot be drawn (Backend.sampling_logits).
    assert token.logprob == pytest.approx(expected, abs=5e-3 if model.backend.name == "cpu" else 1e-4)
