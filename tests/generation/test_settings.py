"""GenerationSettings: what is refused, and how."""

from __future__ import annotations

import numpy as np
import pytest

from tritune import ConfigError
from tritune.generation import GenerationSettings

WRONG = [
    ("max_tokens", 0),
    ("max_tokens", 2.5),
    ("max_tokens", "7"),
    ("max_tokens", True),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("temperature", "hot"),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_k", 2**32),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", None),
    ("min_p", -0.1),
    ("min_p", 1.0),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", float("inf")),
    ("repetition_penalty", float("nan")),
    ("seed", -1),
    ("seed", 2**32),
    ("seed", 1.0),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_out_of_range_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: expected .*, found ") as caught:
        GenerationSettings(**{name: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_ends_of_the_ranges_are_fine() -> None:
    GenerationSettings(max_tokens=1, temperature=0, top_k=2**32 - 1, top_p=1, min_p=0, seed=2**32 - 1)
    GenerationSettings(max_tokens=np.int64(3), temperature=np.float32(0.5), top_k=np.uint8(4))  # type: ignore[arg-type]


def test_the_defaults_are_greedy_and_never_stop() -> None:
    settings = GenerationSettings()
    assert (settings.temperature, settings.repetition_penalty, settings.eos_ids) == (0.0, 1.0, ())
