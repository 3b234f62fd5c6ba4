"""The file of ``-c``: a YAML mapping of the same settings as the flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import click
import yaml

from tritune.cli.settings import DEFAULTS, LORA, TRAIN, Layers, TargetModules, keys_of
from tritune.errors import ConfigError
from tritune.formats.fields import is_integer, is_number, short

TEXTS = ("model", "data", "eval_data", "output", "adapter", "resume", "device", "chat_template", "report_to")
"""Flags of ``train`` besides the settings of LoRAConfig and TrainConfig; and ``threads``, a number."""

MAX_BYTES = 1 << 20

Check = Callable[[Any], Any]
"""From the value in the file to the setting's; raises ValueError saying what was expected."""


def read_config_file(path: Path) -> dict[str, Any]:
    """The settings in a file by field name. Raises ConfigError, one line that names the file and the key."""
    fields = _fields_by_key()
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in _read(path).items():
        field = fields.get(str(key).replace("-", "_"))
        if field is None:
            known = ", ".join(sorted(set(fields.values())))
            raise ConfigError(f"{path}: unknown key {short(key)}; expected some of {known}")
        if field in keys:
            raise ConfigError(f"{path}: {keys[field]} and {key} are the same setting; expected one of them")
        keys[field] = str(key)
        if value is not None:  # nothing behind the colon: the default
            values[field] = _checked(path, str(key), field, value)
    return values


def _fields_by_key() -> dict[str, str]:
    keys = {key: setting.field for setting in (*LORA, *TRAIN) for key in keys_of(setting)}
    return keys | {name: name for name in (*DEFAULTS, *TEXTS, "threads")}


def _read(path: Path) -> dict[Any, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: expected a config file of at most {MAX_BYTES} bytes")
        document: object = yaml.load(path.read_bytes(), _Loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML ({_reason(error)})") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected lines such as 'rank: 16', found {short(document)}")
    return cast("dict[Any, Any]", document)


class _Loader(yaml.SafeLoader):
    """YAML's plain types; a key that stands there twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.value in seen and isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} stands there twice", key_node.start_mark
                )
            if isinstance(key_node, yaml.ScalarNode):
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _checked(path: Path, key: str, field: str, value: Any) -> Any:
    try:
        return _check_of(field)(value)
    except ValueError as error:
        raise ConfigError(f"{path}: {key}: expected {error}, found {short(value)}") from None


def _check_of(field: str) -> Check:
    special: dict[str, Check] = {
        "target_modules": _target_modules,
        "layers": _layers,
        "sample_prompts": _texts,
        "data": _texts,
        "eval_data": _texts,
        "threads": _integer,
        "rank_pattern": _pattern_of(_integer),
        "alpha_pattern": _pattern_of(_number),
    }
    plain: dict[type, Check] = {bool: _boolean, int: _integer, float: _number, str: _text}
    return special.get(field) or plain[type(DEFAULTS.get(field, ""))]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    items: list[object] = list(cast("list[object]", value)) if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        raise ValueError("a list of texts")
    return tuple(str(item) for item in items)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _integer(value: Any) -> int:
    if not is_integer(value):
        raise ValueError("an integer")
    return value


def _number(value: Any) -> float:
    # YAML 1.1 takes 2e-4, without a dot, for text.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError("a number") from None
    if not is_number(value):
        raise ValueError("a number")
    return float(value)


def _target_modules(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(name, str) for name in cast("list[object]", value)):
        return tuple(cast("list[str]", value))
    if not isinstance(value, str):
        raise ValueError("all-linear, a list of module names or a regular expression")
    return TargetModules().convert(value, None, None)


def _layers(value: Any) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(_integer(layer) for layer in cast("list[object]", value))
    try:
        return Layers().convert(_text(str(value) if is_integer(value) else value), None, None)
    except (click.BadParameter, ValueError):
        raise ValueError("a list of layer numbers, or text such as 0-3,7") from None


def _pattern_of(check: Check) -> Check:
    def mapping(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError("a mapping of module patterns to numbers")
        return {_text(key): check(item) for key, item in cast("Mapping[object, object]", value).items()}

    return mapping
