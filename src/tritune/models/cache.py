"""The paged key/value cache: fixed-size blocks on the device, handed out to sequences on the host."""

from __future__ import annotations

from typing import Literal

from tritune.backends.base import Backend, DType
from tritune.errors import ContextLengthError
from tritune.models.config import ModelConfig

BLOCK_SIZE = 32
"""Positions of a block."""


class KVCache:
    """Keys and values of ``num_blocks`` blocks for every layer, and the list of free blocks.

    Blocks are reference-counted, so that several sequences can hold the same prefix; a block with more than one
    holder is full and is never written again.
    """

    def __init__(
        self, backend: Backend, config: ModelConfig, num_blocks: int, dtype: Literal["f16", "f32"] = "f16"
    ) -> None:
        shape = (num_blocks, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
        self.num_blocks = num_blocks
        of_layer: tuple[tuple[int, ...], DType] = (shape, dtype)
        made = backend.empty_together(*[of_layer] * (2 * config.num_layers))
        self.k, self.v = made[: config.num_layers], made[config.num_layers :]
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders = [0] * num_blocks

    def allocate(self) -> int:
        """A block of nobody else's. Raises ContextLengthError when none is left."""
        if not self._free:
            raise ContextLengthError(f"the KV cache is full: all {self.num_blocks * BLOCK_SIZE} positions are in use")
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more holder of a block."""
        self._holders[block] += 1

    def release(self, block: int) -> None:
        """One holder less; the last one frees the block."""
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._free.append(block)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)


class CachedSequence:
    """The blocks of one sequence, in order of position, and the tokens whose keys and values they hold."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.blocks: list[int] = []
        self.tokens: list[int] = []
        self.version = 0
        """Goes up whenever the tokens change: whoever fed some can tell whether they are still the last ones."""

    def __del__(self) -> None:
        self.truncate(0)

    def extend(self, tokens: list[int]) -> None:
        """Make room for more tokens and note them. Raises ContextLengthError (and changes nothing) when there is
        none."""
        self.reserve(len(tokens))
        self.tokens.extend(tokens)
        self.version += 1

    def share(self, other: CachedSequence, length: int) -> None:
        """Begin (while still empty) with the first ``length`` tokens of another sequence, whole blocks of them, in the
        same blocks."""
        self.blocks = other.blocks[: length // BLOCK_SIZE]
        self.tokens = other.tokens[:length]
        for block in self.blocks:
            self.cache.retain(block)
        self.version += 1

    def reserve(self, count: int) -> None:
        """Make room for ``count`` more tokens that are not known yet. Raises as ``extend`` does."""
        length = len(self.tokens) + count
        needed = -(-length // BLOCK_SIZE) - len(self.blocks)
        if needed > self.cache.free_blocks:
            raise ContextLengthError(
                f"{length} tokens do not fit the KV cache of {self.cache.num_blocks * BLOCK_SIZE} positions"
            )
        self.blocks.extend(self.cache.allocate() for _ in range(needed))

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        keep = -(-length // BLOCK_SIZE)
        for block in self.blocks[keep:]:
            self.cache.release(block)
        del self.blocks[keep:]
        del self.tokens[length:]
        self.version += 1

    def common_prefix(self, tokens: list[int]) -> int:
        """How many of the first tokens are the ones held here."""
        count = 0
        for mine, theirs in zip(self.tokens, tokens, strict=False):
            if mine != theirs:
                break
            count += 1
        return count
