"""The values of a fresh adapter: A Kaiming-uniform with a = √5 (as peft), B zero, so that it is the identity."""

from __future__ import annotations

import hashlib

import numpy as np

from tritune.errors import ConfigError
from tritune.lora.types import Floats


def tensor_generator(seed: int, name: str) -> np.random.Generator:
    """The random stream of one tensor: its own for each (seed, name), so equal shapes do not get equal values.

    Raises ConfigError for a negative seed.
    """
    if seed < 0:
        raise ConfigError(f"seed: expected an integer >= 0, found {seed}")
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest[:16], np.uint32).tolist()])


def fill_kaiming_uniform(a: Floats, seed: int, name: str) -> None:
    """Fill a [rank, in]: uniform in ±1/√in (He et al., 2015, with a = √5)."""
    bound = a.shape[1] ** -0.5
    a[...] = tensor_generator(seed, name).uniform(-bound, bound, a.shape)
