"""Rows to examples: prompts, templates, what is trained, what is cut and what is left out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

import numpy as np

from tritune.data.examples import Example, Item, PreferenceExample, fit, fit_pair, windows, without_tail
from tritune.data.fields import BadRow
from tritune.data.messages import Turn, Turns, with_system
from tritune.data.preference import PreferenceRow
from tritune.data.rows import AlpacaRow, ChatRow, CompletionRow, Row, TextRow
from tritune.errors import ConfigError, ModelFileError
from tritune.text.template import ChatTemplate
from tritune.text.tokenizer import Tokenizer
from tritune.text.turns import encode_turns

PromptStyle = Literal["auto", "chat", "alpaca"]
TrainOn = Literal["all", "last"]

# The two prompts of Stanford Alpaca, with and without an input.
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
ALPACA_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)

FORMAT = 1
"""Goes up when the same row becomes other tokens, so that what is cached is made anew."""


@dataclass(frozen=True)
class Encoded:
    """What a row became: ``items`` (none: it cannot be trained), and whether its prompt was cut."""

    items: tuple[Item, ...]
    shortened: bool = False


@dataclass(frozen=True)
class RowEncoder:
    """Makes examples of rows, each sequence at most ``max_seq_len`` tokens.

    ``prompt_style``: what becomes of rows that have no turns of their own. ``chat``: question and answer become turns
    in the model's template; ``alpaca``: plain text, Alpaca rows in their classic prompt; ``auto``: Alpaca rows as
    ``chat`` unless the template is only a stand-in, prompts and completions as plain text. ``system``: a system message
    for all conversations, before one of their own. ``train_on``: ``all`` answers of a conversation, or only the
    ``last``. What follows the last target of a sequence is left out: no loss depends on it.
    Raises ConfigError for a value out of range.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    max_seq_len: int
    prompt_style: PromptStyle = "auto"
    system: str = ""
    train_on: TrainOn = "all"

    def __post_init__(self) -> None:
        if self.max_seq_len < 2:
            raise ConfigError(
                f"max_seq_len: expected at least 2 (one token to see, one to learn), found {self.max_seq_len}"
            )
        for name, choices in (("prompt_style", PromptStyle), ("train_on", TrainOn)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(
                    f"{name}: expected one of {', '.join(get_args(choices))}, found {getattr(self, name)}"
                )

    @property
    def digest(self) -> str:
        """Hexadecimal digest of all that decides which tokens a row becomes, besides the row and the day."""
        source = self.template.source
        options = [FORMAT, self.max_seq_len, self.prompt_style, self.system, self.train_on, self.template.is_fallback]
        text = json.dumps([self.tokenizer.fingerprint, source, options])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def fingerprint(self) -> str:
        """``digest``, and the day where the template writes it."""
        is_dated = "strftime_now" in self.template.source
        return self.digest + (datetime.now().strftime("%Y-%m-%d") if is_dated else "")

    def encode(self, row: Row) -> Encoded:
        """The examples of one row.

        Raises BadRow when the template refuses its messages, ConfigError for a system message that has no place.
        """
        bos = self.tokenizer.bos_id
        if self.system and self._is_plain(row):
            raise ConfigError(
                "system: the rows are plain text, without a system message (prompt_style chat makes turns of prompts)"
            )
        if isinstance(row, PreferenceRow):
            pair = self._pair(row)
            same = np.array_equal(pair.chosen.tokens, pair.rejected.tokens)
            fitted = None if same else fit_pair(pair, self.max_seq_len, bos)
            return Encoded((), False) if fitted is None else Encoded((fitted,), fitted is not pair)
        if isinstance(row, (AlpacaRow, ChatRow, CompletionRow)):
            example = without_tail(self._answered(row))
            cut = fit(example, self.max_seq_len, bos)
            return Encoded((), False) if cut is None else Encoded((cut,), cut is not example)
        return Encoded(tuple(windows(self._plain("", row.text, row.line), self.max_seq_len, bos)))

    def _is_plain(self, row: Row) -> bool:
        if isinstance(row, TextRow):
            return True
        is_text = isinstance(row, CompletionRow) or (isinstance(row, PreferenceRow) and isinstance(row.prompt, str))
        return is_text and self.prompt_style != "chat"

    def _answered(self, row: AlpacaRow | ChatRow | CompletionRow) -> Example:
        if isinstance(row, ChatRow):
            return self._turns(self._masked(row.turns), row.line)
        if isinstance(row, CompletionRow):
            if self.prompt_style == "chat":
                return self._turns((Turn("user", row.prompt), Turn("assistant", row.completion)), row.line)
            return self._plain(row.prompt, row.completion, row.line)
        style = self.prompt_style
        if style == "alpaca" or (style == "auto" and self.template.is_fallback):
            system = "\n\n".join(text for text in (self.system, row.system) if text)
            prompt = alpaca_prompt(row.instruction, row.input)
            return self._plain(f"{system}\n\n{prompt}" if system else prompt, row.output, row.line)
        question = f"{row.instruction}\n\n{row.input}" if row.input else row.instruction
        return self._turns(with_system((Turn("user", question), Turn("assistant", row.output)), row.system), row.line)

    def _pair(self, row: PreferenceRow) -> PreferenceExample:
        def one(answer: Turns | str) -> Example:
            if not isinstance(row.prompt, str) and not isinstance(answer, str):
                return without_tail(self._turns((*row.prompt, *answer), row.line))
            prompt, text = str(row.prompt), str(answer)
            if self.prompt_style == "chat":
                return without_tail(self._turns((Turn("user", prompt), Turn("assistant", text)), row.line))
            return self._plain(prompt, text, row.line)

        return PreferenceExample(one(row.chosen), one(row.rejected))

    def _masked(self, turns: Turns) -> Turns:
        if self.train_on == "all":
            return turns
        last = max(index for index, turn in enumerate(turns) if turn.role == "assistant" and turn.trained)
        return tuple(Turn(turn.role, turn.content, index == last) for index, turn in enumerate(turns))

    def _turns(self, turns: Turns, line: int) -> Example:
        turns = with_system(turns, self.system)
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            encoded = encode_turns(self.tokenizer, self.template, messages, [turn.trained for turn in turns])
        except ModelFileError as error:
            raise BadRow(str(error)) from error
        return Example(encoded.tokens, encoded.trained, line)

    def _plain(self, prompt: str, completion: str, line: int) -> Example:
        """BOS if the model wants it, the prompt; then, trained and encoded apart (as generated), completion and eos."""
        tokenizer = self.tokenizer
        before = tokenizer.with_bos(tokenizer.encode(prompt, special=False))
        after = tokenizer.encode_rest(completion) if prompt else tokenizer.encode(completion, special=False)
        after += [] if tokenizer.eos_id is None else [tokenizer.eos_id]
        tokens = np.array(before + after, np.int32)
        return Example(tokens, np.arange(len(tokens)) >= len(before), line)


def alpaca_prompt(instruction: str, given: str = "") -> str:
    """The classic prompt of Stanford Alpaca."""
    prompt = ALPACA_WITH_INPUT if given else ALPACA_WITHOUT_INPUT
    return prompt.replace("{input}", "\0").replace("{instruction}", instruction).replace("\0", given)
