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
        self.order: Integers = _order_of_hashes(hashes)
        """The hashes given in ascending order; equal ones as they were given."""
        ordered = hashes.take(self.order)
        is_new = np.ones(len(ordered), dtype=np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
        self.first: Integers = np.flatnonzero(is_new)
        """Where in ``order`` each number starts."""
        self.number_in_order: Integers = np.cumsum(is_new) - 1
        """The number of each hash given, ascending."""
        numbered = ordered.take(self.first)
        self._size = len(numbered)
        # A search must end within the array, so there is one more hash that no query exceeds.
        self._hashes = np.append(numbered, np.uint64(2**64 - 1))
        bits = max(12, self._size.bit_length())
        self._bucket_shift = np.uint64(64 - bits)
        counts = np.bincount(_index(numbered >> self._bucket_shift), minlength=1 << bits)
        self._bucket = (np.cumsum(counts) - counts).astype(np.int32)
        self._quick_shift = np.uint64(64 - (bits + 2))
        quick = np.zeros(1 << (bits + 2), dtype=np.bool_)
        quick[_index(numbered >> self._quick_shift)] = True
        # One bit a prefix, to stay in a core's cache.
        self._quick = np.packbits(quick, bitorder="little")

    def __len__(self) -> int:
        return self._size

    @property
    def numbers(self) -> Integers:
        """The number of each hash given, as they were given."""
        numbers = np.empty_like(self.number_in_order)
        numbers[self.order] = self.number_in_order
        return numbers

    def find(self, queries: Hashes) -> tuple[Integers, Integers]:
        """Positions in ``queries`` of those that are members, ascending, and the number of each member."""
        # The table of the leading bits settles nearly all non-members with one look.
        prefix = _index(queries >> self._quick_shift)
        eight = self._quick.take(prefix >> 3)
        maybe = np.flatnonzero(eight >> (prefix & 7).astype(np.uint8) & 1)
        wanted = queries.take(maybe)
        number = self._bucket.take(_index(wanted >> self._bucket_shift))
        there = self._hashes.take(number)
        behind = np.flatnonzero(there < wanted)
        while len(behind):
            number[behind] += 1
            there[behind] = self._hashes.take(number.take(behind))
            behind = behind.take(np.flatnonzero(there.take(behind) < wanted.take(behind)))
        hit = np.flatnonzero((there == wanted) & (number < self._size))
        return maybe.take(hit), number.take(hit).astype(np.int64)


def _order_of_hashes(hashes: Hashes) -> Integers:
    """As ``ascending``, in half the time: by the leading half, and then the few of them that share it and differ."""
    lead = _index(hashes >> np.uint64(32))
    order = ascending(lead, num_bits=32)
    ordered, lead = hashes.take(order), lead.take(order)
    differs = np.flatnonzero((lead[1:] == lead[:-1]) & (ordered[1:] != ordered[:-1]))
    for half in np.unique(lead.take(differs)).tolist():
        here = slice(*np.searchsorted(lead, [half, half + 1]).tolist())
        order[here] = order[here].take(np.argsort(ordered[here], kind="stable"))
    return order


def ascending(values: NDArray[Any], *, num_bits: int = 64) -> Integers:
    """Positions of numbers under ``2^num_bits`` in ascending order, equal ones in the order given.

    By 16 bits at a time, the last first, for which numpy counts instead of comparing: its comparing sort takes several
    times longer on processors that are slow at storing compressed vectors.
    """
    order = np.argsort(values.astype(np.uint16), kind="stable")
    for shift in range(16, num_bits, 16):
        digits = (values >> values.dtype.type(shift)).astype(np.uint16)
        order = order.take(np.argsort(digits.take(order), kind="stable"))
    return order


def distinct(values: Integers, *, num_bits: int) -> Integers:
    """Sorted distinct values of numbers under ``2^num_bits``."""
    ordered = values.take(ascending(values, num_bits=num_bits))
    is_new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered.take(np.flatnonzero(is_new))


def _index(values: Hashes) -> Integers:
    """As numpy takes positions without a conversion."""
    index: Integers = values.view(np.int64)
    return index
