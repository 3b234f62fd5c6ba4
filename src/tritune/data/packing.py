"""Which examples share a micro-batch."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


def fill(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of the examples of each batch, at most ``max_tokens`` tokens: best fit, the longest first.

    Each length is at most ``max_tokens``. Within a batch, and among equal lengths, the given order is kept.
    """
    batches: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (free tokens, number of the batch), ascending
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        place = bisect_left(rooms, (lengths[index], 0))
        if place == len(rooms):
            batches.append([])
            room, number = max_tokens, len(batches) - 1
        else:
            room, number = rooms.pop(place)
        batches[number].append(index)
        if room > lengths[index]:
            insort(rooms, (room - lengths[index], number))
    return [sorted(batch) for batch in batches]


def by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of the examples of each batch: of similar length, as many as ``max_tokens`` holds of the longest."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
