"""A model for EleutherAI's lm-evaluation-harness: needs the extra ``tritune[eval]``.

import lm_eval, tritune
from tritune.evaluation.harness import TrituneLM

results = lm_eval.simple_evaluate(TrituneLM(tritune.load(), adapter), tasks=["arc_easy"])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from tritune.data import Example
from tritune.errors import ConfigError
from tritune.evaluation.scorer import Score, Scorer
from tritune.lora import AdapterLike, as_one
from tritune.model import Model
from tritune.text import encode_chat

MAX_GEN_TOKS = 256
"""New tokens where a task does not say how many."""


class TrituneLM(TemplateLM):
    """loglikelihood, loglikelihood_rolling and generate_until of a model with an adapter (None: the base)."""

    def __init__(self, model: Model, adapter: AdapterLike | None = None) -> None:
        """Raises AdapterError."""
        super().__init__()
        self.model = model
        self.adapter = as_one(adapter)
        self.max_length = model.context_length
        self._scorer = Scorer(model, [self.adapter], likeliest=True)

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache."""
        return self.model.name

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text. Raises ConfigError when the model has none."""
        ends = self.model.tokenizer.end_ids
        if not ends:
            raise ConfigError(f"{self.model.name}: has no end token, which the harness needs")
        return ends[0]

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context: BOS, or the end token."""
        bos = self.model.tokenizer.bos_id
        return self.eot_token_id if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a prompt, in which the harness has written special tokens as text; BOS unless told not to."""
        ids = self.model.tokenizer.encode(string, special=True)
        return ids if add_special_tokens is False else self.model.tokenizer.with_bos(ids)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text in the model's template."""
        tokenizer = self.model.tokenizer
        ids = encode_chat(tokenizer, self.model.template, chat_history, add_generation_prompt)
        return tokenizer.decode(ids, skip_special=False)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        scores = self._score([(context, continuation) for _, context, continuation in requests])
        return [(score.log_likelihood, score.greedy is not None and bool(score.greedy.all())) for score in scores]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, cut into windows that share no scored token."""
        found: list[float] = []
        for request in requests:
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            rolling = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, context_len=1)
            windows = [make_disjoint_window(window) for window in rolling]
            found.append(sum(score.log_likelihood for score in self._score(windows)))
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers up to a stop string; greedy unless a task samples."""
        answers: list[str] = []
        for request in requests:
            context, options = request.args
            until = options.get("until") or []
            tokens = min(int(options.get("max_gen_toks", MAX_GEN_TOKS)), self.max_length - 1)
            ids = self.tok_encode(context)[-(self.max_length - tokens) :]
            temperature = float(options.get("temperature", 0.0)) if options.get("do_sample") else 0.0
            stops = [until] if isinstance(until, str) else list(until)
            answers.append(
                self.model.generate(
                    ids, self.adapter, max_tokens=tokens, temperature=temperature, stop=stops, repetition_penalty=1.0
                )
            )
        return answers

    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Score]:
        """Of continuations after contexts, which are cut from the left to fit."""
        examples: list[Example] = []
        for context, continuation in pairs:
            ids = [*context, *continuation][-self.max_length :]
            first = len(ids) - len(continuation)
            examples.append(Example(np.array(ids, np.int32), np.arange(len(ids)) >= first))
        return list(self._scorer.score(examples))
