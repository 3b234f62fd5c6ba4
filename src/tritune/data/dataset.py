"""Rows as examples: each tokenised when its turn comes, or taken from the cache."""

from __future__ import annotations

import hashlib

from tritune.data.encode import Encoded, RowEncoder
from tritune.data.examples import Item
from tritune.data.fields import BadRow
from tritune.data.mixture import Order, RowSet
from tritune.data.source import HELD_ROWS
from tritune.data.token_cache import TokenCache
from tritune.errors import DataError


class Dataset:
    """Examples by row. What is held in memory does not grow with the rows but for a few bytes each."""

    def __init__(self, rows: RowSet, encoder: RowEncoder, cache: bool = True) -> None:
        """``cache``: keep tokens of files on the disk, for the next epoch and the next run."""
        self.rows = rows
        self.encoder = encoder
        fingerprint = encoder.fingerprint if cache else ""
        self._caches = [
            TokenCache.open(source.fingerprint, fingerprint, source.num_original) if cache else None
            for source in rows.sources
        ]
        self._seen = bytearray(-(-len(rows) // 8))  # rows that are counted below, a bit each
        self._num_seen = 0
        self._shortened = 0
        self._dropped = 0
        self._first_dropped = ""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def rows_per_epoch(self) -> int:
        """How many rows an epoch takes."""
        return self.rows.rows_per_epoch

    @property
    def is_preference(self) -> bool:
        """Whether the examples are pairs."""
        return self.rows.is_preference

    def order(self, seed: int, epoch: int) -> Order:
        """uint32 [rows_per_epoch]: the rows of an epoch in their order."""
        return self.rows.order(seed, epoch)

    def __getitem__(self, index: int) -> tuple[Item, ...]:
        """The examples of a row; none when it cannot be trained. Raises DataError naming file and line."""
        encoded = self.encoded(index)
        self._count(index, encoded)
        return encoded.items

    def encoded(self, index: int) -> Encoded:
        """What a row became. Raises DataError naming file and line when it cannot be used."""
        number, local = self.rows.find(index)
        source, cache = self.rows.sources[number], self._caches[number]
        kept_as = source.original(local)
        if cache is not None and (known := cache.get(kept_as, source.line(local))) is not None:
            return known
        try:
            encoded = self.encoder.encode(source[local])
        except BadRow as reason:
            raise source.error(local, reason) from reason
        if cache is not None:
            cache.put(kept_as, encoded)
        return encoded

    @property
    def digest(self) -> str:
        """Hexadecimal digest: equal when the same rows become the same tokens."""
        return hashlib.sha256(f"{self.rows.digest} {self.encoder.digest}".encode()).hexdigest()

    def first(self) -> Item:
        """The first example there is. Raises DataError when no row can be trained."""
        for index in range(len(self)):
            if items := self[index]:
                return items[0]
        raise self.nothing_to_train()

    def tokens_up_to(self, limit: int) -> int:
        """Tokens of all examples of an epoch together, or ``limit`` when there are more, or may be."""
        if self.rows.repeats:
            return limit
        total = 0
        for index in range(len(self)):
            total += sum(len(item) for item in self.encoded(index).items)
            if total >= limit:
                return limit
        return total

    def longest(self) -> int:
        """Tokens of the longest sequence, or pair, of a short data set; of a long one the most that there may be."""
        if len(self) > HELD_ROWS:
            return self.encoder.max_seq_len * (2 if self.is_preference else 1)
        return max((len(item) for index in range(len(self)) for item in self.encoded(index).items), default=0)

    def nothing_to_train(self) -> DataError:
        """What to tell when no row can be trained."""
        limit = self.encoder.max_seq_len
        return DataError(
            f"{self.rows.name}: none of {len(self)} rows can be trained: no answer fits max_seq_len {limit}"
        )

    def notes(self) -> list[str]:
        """Sentences for the user about rows that were cut or left out, of those met so far; empty when none was."""
        limit = self.encoder.max_seq_len
        met = "" if self._num_seen == len(self) else f" (of {self._num_seen} read so far)"
        notes: list[str] = []
        if self._shortened:
            notes.append(f"{self._shortened} rows{met} were cut from the left of the prompt to fit {limit} tokens")
        if self._dropped:
            notes.append(
                f"{self._dropped} rows{met} were left out: their answer does not fit {limit} tokens or teaches nothing "
                f"(one is at {self._first_dropped})"
            )
        return notes

    def _count(self, index: int, encoded: Encoded) -> None:
        byte, bit = index >> 3, 1 << (index & 7)
        if self._seen[byte] & bit:
            return
        self._seen[byte] |= bit
        self._num_seen += 1
        self._shortened += encoded.shortened
        if not encoded.items:
            number, local = self.rows.find(index)
            source = self.rows.sources[number]
            name = f"{source.name}: " if len(self.rows.sources) > 1 else ""
            self._first_dropped = self._first_dropped or name + source.place(local)
            self._dropped += 1
