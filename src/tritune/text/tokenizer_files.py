"""The tokenizer files of a Hugging Face directory, read into a TokenizerSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tritune.errors import ModelFileError
from tritune.text.specials import AddedToken
from tritune.text.tokenizer import Tokenizer, TokenizerSpec

MAX_FILE_BYTES = 256 << 20  # the largest tokenizer.json in use (262,144 tokens) has 33 MB


def read_directory(path: Path) -> TokenizerSpec:
    """Read tokenizer.json and what lies beside it. Raises ModelFileError when it is missing, too large or damaged."""
    file = path / "tokenizer.json"
    if not file.is_file():
        beside = (
            " (a tokenizer.model lies there: convert it to tokenizer.json)"
            if (path / "tokenizer.model").is_file()
            else ""
        )
        raise ModelFileError(f"{path}: no tokenizer.json in it{beside}")
    library = _read_object(file)
    if not isinstance(library.get("model"), dict):
        raise ModelFileError(f"{file}: no 'model' in it, so it is not a tokenizer")
    config = _read_object(path / "tokenizer_config.json")
    named = _named_tokens(_read_object(path / "special_tokens_map.json") | config)
    add_bos = config.get("add_bos_token")
    return TokenizerSpec(
        library=library,
        named=named,
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        chat_template=_chat_template(path, config),
        source=str(file),
        extra_added=tuple(_declared_tokens(config, path)),
    )


def write_directory(tokenizer: Tokenizer, path: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as transformers reads them. Raises OSError."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokenizer.named_tokens,
        "add_bos_token": tokenizer.add_bos,
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    for name, content in (("tokenizer.json", tokenizer.library_spec()), ("tokenizer_config.json", config)):
        (path / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(_read_text(file))
    except ValueError as error:
        raise ModelFileError(f"{file}: not valid JSON ({error})") from error
    except RecursionError as error:
        raise ModelFileError(f"{file}: JSON nested too deeply") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{file}: expected a JSON object, found {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _read_text(file: Path) -> str:
    try:
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ModelFileError(f"{file}: {size} bytes, more than the {MAX_FILE_BYTES} that a tokenizer file may have")
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{file}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise ModelFileError(f"{file}: cannot be read ({error.strerror})") from error


def _named_tokens(values: Mapping[str, Any]) -> dict[str, str]:
    """Strings of ``*_token`` entries, which may be strings, objects with a content, or null."""
    named: dict[str, str] = {}
    for role, value in values.items():
        content: Any = cast("Mapping[str, Any]", value).get("content") if isinstance(value, Mapping) else value
        if role.endswith("_token") and isinstance(content, str) and content:
            named[role] = content
    return named


def _declared_tokens(config: Mapping[str, Any], path: Path) -> list[AddedToken]:
    """Entries of ``added_tokens_decoder`` (id to token), in files that keep them outside of tokenizer.json."""
    declared = config.get("added_tokens_decoder")
    if not isinstance(declared, Mapping):
        return []
    entries = cast("Mapping[str, Mapping[str, Any]]", declared)
    try:
        return [AddedToken.from_json({**entry, "id": int(key)}) for key, entry in entries.items()]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path / 'tokenizer_config.json'}: damaged 'added_tokens_decoder' ({error!r})") from error


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    found: Any = config.get("chat_template")
    if isinstance(found, list):  # several by name
        by_name = {entry.get("name"): entry.get("template") for entry in cast("Sequence[Mapping[str, Any]]", found)}
        found = by_name.get("default")
    return found if isinstance(found, str) else None
