"""A Jinja environment for templates from model files: what transformers offers them, and bounds on what they may use.

The template is untrusted text. The sandbox keeps it from Python's inside; the budget keeps it from running for ever
(loop rounds and calls are counted) and from filling the memory (every joined, added or multiplied string is measured).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SOURCE_CHARS = 1 << 20
MAX_STEPS = 200_000  # loop rounds and calls in one rendering
MAX_CHARS = 16 << 20  # of the output, and of any string made on the way

_PADDING_METHODS = frozenset({"format", "format_map", "center", "ljust", "rjust", "zfill", "expandtabs"})


class TemplateRefused(jinja2.TemplateError):
    """The template went past a bound, or called ``raise_exception``."""


class _GenerationTag(Extension):
    """``{% generation %} … {% endgeneration %}`` marks answers in some templates; its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it as an attribute of instances

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment of one template. The budget of a rendering is its state: one thread at a time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        self._steps = 0
        for name in ("center", "format", "pprint"):
            self.filters.pop(name, None)
        self.globals.pop("lipsum", None)
        filters: dict[str, Any] = {"tojson": _to_json, "_counted": self._counted, "_measured": self._measured}
        functions: dict[str, Any] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.filters.update(filters)
        self.globals.update(functions)

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Compile with every loop counted and every ``~`` measured. Raises jinja2.TemplateError."""
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateRefused(f"the template has {len(source)} characters, more than {MAX_SOURCE_CHARS}")
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(cast("nodes.Expr", loop.iter), "_counted", loop.lineno)
        for owner in list(tree.find_all(nodes.Node)):
            _measure_concats(owner)
        tree.set_environment(self)
        code = self.compile(tree)
        return jinja2.Template.from_code(self, code, self.make_globals(None))

    def render_bounded(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """Render within the budget. Raises jinja2.TemplateError, or whatever the template's expressions raise."""
        self._steps = 0
        pieces: list[str] = []
        size = 0
        for piece in template.generate(variables):
            size += len(piece)
            if size > MAX_CHARS:
                raise TemplateRefused(f"its output is longer than {MAX_CHARS} characters")
            pieces.append(piece)
        return "".join(pieces)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _PADDING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self._step()
        return self._measured(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise TemplateRefused("formatting with % is not allowed")
        if operator == "**" and not (abs(left) <= 1 << 20 and abs(right) <= 8):
            raise TemplateRefused("a power of such numbers is not allowed")
        if operator == "*":
            size = _length(left) * _number(right) + _length(right) * _number(left)
            if size > MAX_CHARS:
                raise TemplateRefused(f"a product is longer than {MAX_CHARS} characters")
        return self._measured(super().call_binop(context, operator, left, right))

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateRefused(f"it takes more than {MAX_STEPS} loop rounds and calls")

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._step()
            yield value

    def _measured(self, value: Any) -> Any:
        if _length(value) > MAX_CHARS or (isinstance(value, int) and value.bit_length() > 4096):
            raise TemplateRefused(f"a value is longer than {MAX_CHARS} characters")
        return value


def _filtered(expression: nodes.Expr, name: str, line: int) -> nodes.Filter:
    return nodes.Filter(expression, name, [], [], None, None, lineno=line)


def _measure_concats(owner: nodes.Node) -> None:
    for name, value in list(owner.iter_fields()):
        if isinstance(value, nodes.Concat) and not (isinstance(owner, nodes.Filter) and owner.name == "_measured"):
            setattr(owner, name, _filtered(value, "_measured", value.lineno))
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            items[:] = [_filtered(v, "_measured", v.lineno) if isinstance(v, nodes.Concat) else v for v in items]


def _length(value: Any) -> int:
    return len(cast("str | list[Any] | tuple[Any, ...]", value)) if isinstance(value, (str, list, tuple)) else 0


def _number(value: Any) -> int:
    return max(int(value), 0) if isinstance(value, int) else 0


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefused(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: not escaped for HTML, and other alphabets readable."""
    spaces = None if indent is None else min(int(indent), 16)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=spaces, separators=separators, sort_keys=sort_keys)
