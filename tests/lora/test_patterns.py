"""Keys of rank_pattern and alpha_pattern in a file: matched as peft would, without a regular expression."""

from __future__ import annotations

import re

import pytest

from tritune.errors import AdapterError
from tritune.lora.patterns import Pattern, ends_with
from tritune.models.linears import PROJECTIONS, module_path

PATHS = [module_path(layer, projection) for layer in (0, 1, 2, 10, 11, 21) for projection in PROJECTIONS]
KEYS = [
    "q_proj", "self_attn.q_proj", r"self_attn\.q_proj", "1.self_attn.q_proj", r"1\.mlp\.up_proj", "proj", "_proj",
    "layers.1.self_attn.k_proj", r"model\.layers\.10\.mlp\.down_proj", "^model.layers.1.mlp.up_proj", "^q_proj",
    "down_proj$", r"layers\.1", "self.attn.q.proj", r"self\.attn.q_proj", ".q_proj", r"\.q_proj", "....proj", "x" * 200,
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_matches_what_peft_matches(key: str) -> None:
    pattern = Pattern.parse(key, "where")
    assert [pattern.matches(path) for path in PATHS] == [bool(re.match(rf"(.*\.)?({key})$", p)) for p in PATHS]


@pytest.mark.parametrize(
    "key", [".*q_proj", "(a+)+b", "q|k", "[qk]_proj", "layers.1?", r"\w+", r"a\\.b", "a^b", "", "^", "a$b"]
)
def test_a_regular_expression_is_refused_by_name(key: str) -> None:
    with pytest.raises(AdapterError, match=rf"rank_pattern {re.escape(repr(key))} is a regular expression"):
        Pattern.parse(key, "config: rank_pattern")


def test_names_end_at_a_dot() -> None:
    assert ends_with("model.layers.1.mlp.up_proj", "up_proj")
    assert ends_with("model.layers.1.mlp.up_proj", "1.mlp.up_proj")
    assert not ends_with("model.layers.11.mlp.up_proj", "1.mlp.up_proj")
    assert not ends_with("model.layers.1.mlp.up_proj", "proj")
