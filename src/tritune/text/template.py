"""A model's chat template: messages to text. Turning the text into tokens is ``turns.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import jinja2

from tritune.errors import ConfigError, ModelFileError
from tritune.text.sandbox import ChatEnvironment
from tritune.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""``{"role": "user" | "assistant" | "system" | "tool", "content": text}``."""

BITNET = (
    "{% for message in messages %}"
    "{% set turn = message['role'] | capitalize + ': ' + message['content'] | trim + '<|eot_id|>' %}"
    "{{ bos_token + turn if loop.first else turn }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
"""BitNet b1.58 2B-4T: ``<|begin_of_text|>User: …<|eot_id|>Assistant: ``."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

PLAIN = (
    "{% for message in messages %}"
    "{{ message['role'] | capitalize + ':\\n' + message['content'] | trim + eos_token + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}"
)
"""For a model without a template of its own."""

BUILT_IN = {"bitnet": BITNET, "chatml": CHATML, "plain": PLAIN}


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, name: str = "chat template", is_fallback: bool = False) -> None:
        """Compile ``source``; ``name`` says in messages where it is from.

        ``is_fallback``: the model has no template of its own, and this one only stands in. Raises ModelFileError.
        """
        self.source = source
        self.name = name
        self.is_fallback = is_fallback
        self._environment = ChatEnvironment()
        self._lock = Lock()
        try:
            self._template = self._environment.compile_bounded(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(f"{name}: line {error.lineno}: {_one_line(error)}") from error
        except Exception as error:
            raise ModelFileError(f"{name}: cannot be compiled ({_one_line(error)})") from error

    @staticmethod
    def resolve(tokenizer: Tokenizer, override: str | Path | None = None, model_type: str = "") -> ChatTemplate:
        """The template to use: ``override``, else the model's own, else the one known for the model, else a plain one.

        ``override`` is the name of a built-in template (bitnet, chatml, plain), a path, or the template itself.
        Raises ConfigError when it is none of these, ModelFileError when the template is damaged.
        """
        if override is not None:
            return _from_override(override)
        if tokenizer.chat_template:
            return ChatTemplate(tokenizer.chat_template, "chat template of the model")
        special = tokenizer.special_tokens
        if model_type.startswith("bitnet") and {"<|begin_of_text|>", "<|eot_id|>"} <= special.keys():
            return ChatTemplate(BITNET, "built-in template 'bitnet'")
        if {"<|im_start|>", "<|im_end|>"} <= special.keys():
            return ChatTemplate(CHATML, "built-in template 'chatml'")
        return ChatTemplate(PLAIN, "built-in template 'plain'", is_fallback=True)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = False,
        named_tokens: Mapping[str, str] | None = None,
    ) -> str:
        """The text of ``messages``; with ``add_generation_prompt`` up to where the assistant's answer begins.

        ``named_tokens``: strings of ``bos_token``, ``eos_token`` …. Raises ModelFileError when the template fails or
        refuses.
        """
        variables: dict[str, Any] = {
            "bos_token": "",
            "eos_token": "",
            **(named_tokens or {}),
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        with self._lock:
            try:
                return self._environment.render_bounded(self._template, variables)
            except Exception as error:
                raise ModelFileError(f"{self.name}: {_one_line(error)}") from error


def _from_override(override: str | Path) -> ChatTemplate:
    text = str(override)
    if text in BUILT_IN:
        return ChatTemplate(BUILT_IN[text], f"built-in template '{text}'")
    if isinstance(override, str) and ("{{" in text or "{%" in text):
        return ChatTemplate(text, "chat template given")
    try:
        return ChatTemplate(Path(text).read_text(encoding="utf-8-sig"), text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        known = ", ".join(BUILT_IN)
        reason = _one_line(error)
        raise ConfigError(
            f"chat template {text[:80]!r}: neither a built-in one ({known}) nor a readable file ({reason})"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
