"""A counter-based random generator: a hash of a few 32-bit words.

The same words give the same number on every backend and in any order of evaluation, so dropout masks can be recomputed
in backward and a sequence's draws do not depend on what else is in its batch.
Source: the PCG output function RXS-M-XS (O'Neill, 2014), as used for GPU hashing by Jarzynski and Olano (JCGT 2020).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def hash_u32(x: Words) -> Words:
    """Hash 32-bit words to 32-bit words (elementwise)."""
    state = x * np.uint32(747796405) + np.uint32(2891336453)
    word = ((state >> ((state >> np.uint32(28)) + np.uint32(4))) ^ state) * np.uint32(277803737)
    return (word >> np.uint32(22)) ^ word


def hash_words(*words: Words) -> Words:
    """Hash several words to one: h = hash(w0), then h = hash(h + w) for each further word (broadcasting)."""
    with np.errstate(over="ignore"):
        h = hash_u32(np.asarray(words[0], np.uint32))
        for word in words[1:]:
            h = hash_u32(h + np.asarray(word, np.uint32))
    return h
