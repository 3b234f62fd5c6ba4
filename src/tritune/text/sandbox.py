"""A Jinja environment for templates from model files: what transformers offers them, and bounds on what they may use.

The template is untrusted text. The sandbox keeps it from Python's inside; the budget keeps it from running for ever
(loop rounds, calls and filters are counted, and the clock is looked at between them; each of them alone is short, since
what it may work on is bounded) and from filling the memory (what they make is measured, where one could make much of
little before it is made, and added up).
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SOURCE_CHARS = 1 << 20
MAX_STEPS = 200_000  # loop rounds, calls and filters in one rendering
MAX_SECONDS = 2.0  # of one rendering
MAX_CHARS = 4 << 20  # of the output, and of any string or list made on the way
MAX_MADE = 32 * MAX_CHARS  # of all strings and lists made on the way

# Filters that make much of little, or are not the same twice; no chat template has a use for them.
_NO_FILTERS = ("center", "format", "pprint", "batch", "slice", "wordwrap", "urlize", "xmlattr", "random")
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
        # Not optimized: constant expressions would be computed while compiling, outside of the budget.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, _GenerationTag]
        )
        self._begin()
        for name in _NO_FILTERS:
            self.filters.pop(name, None)
        self.filters.update({name: self._bounded(name, filter) for name, filter in self.filters.items()})
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
        self._begin()
        pieces: list[str] = []
        size = 0
        for piece in template.generate(variables):
            self._look_at_the_clock()
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
        subject: object = getattr(__obj, "__self__", None)
        if isinstance(subject, str):
            _check_growth(str(getattr(__obj, "__name__", "")), subject, args)
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

    def _begin(self) -> None:
        self._steps = 0
        self._made = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateRefused(f"it takes more than {MAX_STEPS} loop rounds and calls")
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        if time.monotonic() > self._deadline:
            raise TemplateRefused(f"it takes more than {MAX_SECONDS:g} seconds")

    def _bounded(self, name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that counts as a step, and whose result is measured; jinja2's marks on the function stay."""

        @functools.wraps(filter)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._step()
            for position, subject in enumerate(args[:2]):  # behind the context, where the filter takes one
                if isinstance(subject, (str, list, tuple)):
                    _check_growth(name, cast("Sequence[Any]", subject), (*args[position + 1 :], *kwargs.values()))
                    break
            result = filter(*args, **kwargs)
            return self._counted(result) if isinstance(result, Iterator) else self._measured(result)

        return bounded

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._step()
            yield value

    def _measured(self, value: Any) -> Any:
        self._made += _length(value)
        if self._made > MAX_MADE:
            raise TemplateRefused(f"the values that it makes are longer than {MAX_MADE} characters together")
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


def _check_growth(name: str, subject: Sequence[Any], args: Sequence[Any]) -> None:
    """Refuse a call or filter whose result would be much longer than what goes into it."""
    texts = [arg for arg in args if isinstance(arg, str)]
    if name == "replace" and isinstance(subject, str) and len(texts) > 1:
        size = subject.count(texts[0]) * len(texts[1])
    elif name == "join":  # of a text's method, or of the filter
        parts: Any = args[0] if isinstance(subject, str) and args and isinstance(args[0], (list, tuple)) else subject
        between = len(subject) if isinstance(subject, str) else max(map(len, texts), default=0)
        size = len(parts) * between + sum(map(_length, parts))
    elif name == "indent":
        width = max([_number(arg) for arg in args] + [len(text) for text in texts] + [4])
        size = (str(subject).count("\n") + 1) * width
    else:
        size = len(subject)
    if size > MAX_CHARS:
        raise TemplateRefused(f"what {name} makes is longer than {MAX_CHARS} characters")


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
