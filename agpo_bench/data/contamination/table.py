"""A set of 64-bit hashes that whole arrays are looked up in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Integers = NDArray[np.int64]


class HashTable:
    """Distinct hashes, numbered in ascending order. The leading bits of a hash must be as good as random."""

    def __init__(self, hashes: Hashes) -> None:
        ordered = distinct(hashes)
        self._size = len(ordered)
        # A search must end within the array, so there is one more hash that no query exceeds.
        self._hashes = np.append(ordered, np.uint64(2**64 - 1))
        bits = max(12, self._size.bit_length())
        self._bucket_shift = np.uint64(64 - bits)
        counts = np.bincount((ordered >> self._bucket_shift).astype(np.int64), minlength=1 << bits)
        self._first = (np.cumsum(counts) - counts).astype(np.int32)
        self._quick_shift = np.uint64(64 - (bits + 2))
        self._quick = np.zeros(1 << (bits + 2), dtype=np.bool_)
        self._quick[ordered >> self._quick_shift] = True

    def __len__(self) -> int:
        return self._size

    def find(self, queries: Hashes) -> tuple[Integers, Integers]:
        """Positions in ``queries`` of those that are members, and the number of the member."""
        # The table of the leading bits settles nearly all non-members with one look.
        maybe = np.flatnonzero(self._quick[queries >> self._quick_shift])
        wanted = queries[maybe]
        number = self._first[wanted >> self._bucket_shift]
        behind = np.flatnonzero(self._hashes[number] < wanted)
        while len(behind):
            number[behind] += 1
            behind = behind[self._hashes[number[behind]] < wanted[behind]]
        hit = np.flatnonzero((self._hashes[number] == wanted) & (number < self._size))
        return maybe[hit], number[hit].astype(np.int64)


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Sorted distinct values, by sorting: the hash table of ``numpy.unique`` is several times slower on hashes."""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered
