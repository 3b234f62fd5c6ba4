"""Which template is taken, what templates may use, and that a hostile one is stopped with one line."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path

import pytest

from tritune.errors import ConfigError, ModelFileError
from tritune.text import ChatTemplate, Tokenizer
from tritune.text.template import BITNET, CHATML, PLAIN

HELLO = [{"role": "user", "content": "hello"}]


def test_resolution(bitnet: Tokenizer, chatml: Tokenizer, tmp_path: Path) -> None:
    assert ChatTemplate.resolve(bitnet, model_type="bitnet-b1.58").source == BITNET
    assert ChatTemplate.resolve(chatml).source == CHATML
    fallback = ChatTemplate.resolve(bitnet, model_type="llama")
    assert (fallback.source, fallback.is_fallback) == (PLAIN, True)
    assert ChatTemplate.resolve(bitnet, override="chatml").source == CHATML
    file = tmp_path / "own.jinja"
    file.write_bytes(b"\xef\xbb\xbfA{{ messages[0].content }}")
    for override in (file, str(file)):
        assert ChatTemplate.resolve(bitnet, override=override).render(HELLO) == "Ahello"
    assert ChatTemplate.resolve(bitnet, override="B{{ messages[0]['content'] }}").render(HELLO) == "Bhello"


@pytest.mark.parametrize("override", ["nonsense", "", "a\0b", "x" * 5000])
def test_override_that_is_nothing(bitnet: Tokenizer, override: str) -> None:
    with pytest.raises(ConfigError, match="neither a built-in one") as caught:
        ChatTemplate.resolve(bitnet, override=override)
    assert len(str(caught.value)) < 600


def test_what_transformers_offers_to_templates() -> None:
    source = (
        "{%- set ns = namespace(n=0) -%}\n{% for m in messages %}\n    {%- if m.role == 'user' %}"
        "{% set ns.n = ns.n + 1 %}{{ m.content | tojson }}{% break %}{% endif %}\n{% endfor %}"
        "{{ ns.n }} {{ strftime_now('%Y') }} {{ tools is none }}{{ messages | map(attribute='role') | join(',') }}"
        "{{ 'abc'.upper().startswith('A') }}{{ {'é': 1} | tojson(indent=1) }}"
    )
    year = datetime.now().year
    assert (
        ChatTemplate(source).render([{"role": "user", "content": "<é>"}])
        == f'"<é>"1 {year} TrueuserTrue{{\n "é": 1\n}}'
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% set _ = messages.append(1) %}",
        "{{ 'x' * 1000000000000 }}",
        "{{ [0] * 1000000000000 }}",
        "{{ 2 ** 2 ** 60 }}",
        "{% set ns = namespace(x=7) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
        "{{ '%999999999999d' % 1 }}",
        "{{ '{:999999999999}'.format(1) }}",
        "{{ 'x'.ljust(999999999999) }}",
        "{{ 'x' | center(999999999999) }}",
        "{{ lipsum(n=100000) }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(900) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 1000000 }}{% endfor %}",
        "{% set x = 'x' * 4000000 %}{% for a in range(99999) %}{% set y = x.upper() %}{% endfor %}",
        "{% set x = 'x' * 4000000 %}{% for a in range(99999) %}{% set y = x | upper | lower %}{% endfor %}",
        "{{ (['x' * 4000000] * 99999) | map('upper') | list }}",
        "{{ ('x' * 4000000) | replace('x', 'y' * 4000000) }}",
        "{{ ('x' * 4000000).replace('', 'y' * 4000000) }}",
        "{{ (['x'] * 99999) | join('y' * 4000000) }}",
        "{{ ('y' * 4000000).join(['x'] * 99999) }}",
        "{{ ('\n' * 4000000) | indent(4000000) }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{% for a in range(99999) recursive %}{% if loop.depth < 99 %}{{ loop(range(99999)) }}{% endif %}{% endfor %}",
        "{% set x = range(99999) | list %}{% for a in range(99999) %}{% set y = x | sort | sum %}{% endfor %}",
        "{% include 'a' %}",
        "{{ undefined_thing.attribute }}",
        "{{ messages[0].content + 1 }}",
        "{{ raise_exception('roles must alternate\n\nuser, assistant') }}",
        "{% for %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ 1 / 0 }}",
        "x" * (1 << 21),
    ],
)
def test_hostile_or_broken_templates(source: str) -> None:
    started = time.monotonic()
    with pytest.raises(ModelFileError, match=r"^the template: ") as caught:
        ChatTemplate(source, "the template").render(HELLO)
    assert time.monotonic() - started < 20
    assert re.fullmatch(r"[^\n]{1,500}", str(caught.value))


def test_the_budget_is_renewed_for_each_rendering() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}ok")
    assert [template.render(HELLO) for _ in range(15)] == ["ok"] * 15


def test_an_exception_of_the_template_is_told() -> None:
    with pytest.raises(ModelFileError, match=r"^chat template: roles must alternate$"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(HELLO)
