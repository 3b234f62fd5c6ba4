"""Packing: sequences of a micro-batch one after another, without padding, isolated.

Positions restart, ``q_start`` bounds the sequences, and no target crosses a boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritune.data.examples import Item


@dataclass(frozen=True)
class Batch:
    """T rows of S sequences, packed."""

    tokens: NDArray[np.int32]
    """int32 [T]"""
    targets: NDArray[np.int32]
    """int32 [T]: the id of the sequence's next token where that one is trained, else -1"""
    positions: NDArray[np.int32]
    """int32 [T]: from 0 in each sequence"""
    sequence: NDArray[np.int32]
    """int32 [T]: the sequence of a row"""
    q_start: NDArray[np.int32]
    """int32 [S+1]: where each sequence begins, and T"""

    @property
    def num_targets(self) -> int:
        """Number of trained tokens."""
        return int(np.count_nonzero(self.targets >= 0))


def pack(items: Sequence[Item]) -> Batch:
    """One batch of examples, or of pairs (chosen, then rejected), in order."""
    examples = [example for item in items for example in item.sequences]
    lengths = np.array([len(example) for example in examples], np.int32)
    q_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = np.concatenate([example.tokens for example in examples]).astype(np.int32)
    trained = np.concatenate([example.trained for example in examples]).astype(np.bool_)
    trained[q_start[:-1]] = False  # a sequence's first token would be the target of another one's last
    targets = np.full(len(tokens), -1, np.int32)
    targets[:-1] = np.where(trained[1:], tokens[1:], -1)
    sequence = np.repeat(np.arange(len(examples), dtype=np.int32), lengths)
    positions = np.arange(len(tokens), dtype=np.int32) - q_start[sequence]
    return Batch(tokens, targets, positions, sequence, q_start)
