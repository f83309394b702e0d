r"""Texts as tokens that do not depend on typesetting, for whole batches at once.

A token is a run of letters, a number, a LaTeX command, one CJK character, or one symbol. White space, braces, dollar
signs and sentence punctuation separate tokens and are none; case, Unicode compatibility forms, and the spellings that
LaTeX allows for one thing (``\dfrac`` and ``\frac``, ``\left(`` and ``(``, ``x^{2}`` and ``x^2``, ``10,\!000`` and
``10000``) are made equal. Operators are tokens: ``x+1`` and ``x-1`` differ. Two texts with equal tokens are the same.

Each token is a 64-bit hash, so a batch is an array and everything after is numpy. K tokens of a batch in a row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agpo_bench.data.contamination.table import Hashes, HashTable, Integers
from agpo_bench.data.contamination.vocabulary import (
    DROPPED_COMMANDS,
    FACT_SYMBOLS,
    FACT_WORDS,
    LETTERS_OF_WORDS,
    LOOSE_COMMANDS,
    SAME_COMMANDS,
    UNICODE_SYMBOLS,
)

_SEPARATES, _LETTER, _NUMBER, _SYMBOL, _END, _COMMA, _DOT, _DASH, _BACKSLASH = range(9)
_HANGS = _COMMA
"""Kinds from here on hang on what stands beside the character."""
_TEXT_END = "\x00"

_DIGITS_OF_FRACTION = re.compile(r"(frac)\s*([0-9])\s*([0-9])")
_DRAWING, _DRAWING_END = "[asy]", "[/asy]"


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of a batch of texts."""

    hash_K: Hashes
    is_number_K: NDArray[np.bool_]
    is_fact_K: NDArray[np.bool_]
    """Numbers, operators, LaTeX commands, single letters, and words for numbers or for what is asked (``minimum``).

    Two texts that differ in one of these ask different things, however alike they are.
    """
    is_drawing_K: NDArray[np.bool_]
    """Code of a figure (``[asy]``): told apart in exact comparison, and of no weight in any other."""
    first: Integers
    """Text i has the tokens ``first[i]:first[i + 1]``."""
    start_K: Integers
    end_K: Integers
    """Token k is ``start_K[k]:end_K[k]`` of the batch without its vanished characters."""
    vanished: Integers
    """Positions in ``joined`` of the commas left out of numbers."""
    joined: str
    """The batch as it was cut."""

    @property
    def num_texts(self) -> int:
        """Texts of the batch."""
        return len(self.first) - 1

    def owners(self) -> Integers:
        """Number of the text each token belongs to, K numbers."""
        return np.repeat(np.arange(self.num_texts), np.diff(self.first))

    def words(self, text: int, start: int, end: int) -> str:
        """Tokens ``start:end`` of a text as they are written in it, with what stands between them."""
        if end <= start:
            return ""
        base = int(self.first[text])
        ends = np.array([self.start_K[base + start], self.end_K[base + end - 1] - 1])
        before = self.vanished - np.arange(len(self.vanished))
        from_, to = (ends + np.searchsorted(before, ends, side="right")).tolist()
        return self.joined[from_ : to + 1]


def tokenise(texts: Sequence[str]) -> Tokens:
    """Read a batch. The tokens of a text do not depend on what shares its batch."""
    joined = _TEXT_END.join(texts) + _TEXT_END if texts else ""
    if joined.count(_TEXT_END) != len(texts):
        return tokenise([text.replace(_TEXT_END, " ") for text in texts])
    joined = joined.lower() if joined.isascii() else _plain(texts)
    if "\\" in joined:
        joined = joined.replace("\\\\", "  ").replace("{,}", ",").replace(",\\!", ",")
        joined = _DIGITS_OF_FRACTION.sub(r"\1 \2 \3", joined)
    code = _code(joined)
    kind, vanished = _settle(code, _kinds_of(code))
    if len(vanished):
        code, kind = _without(code, vanished), _without(kind, vanished)
    return _cut(joined, code, kind, vanished)


def _code(joined: str) -> NDArray[np.unsignedinteger[Any]]:
    """The characters as numbers, in one byte each where all are ASCII."""
    if joined.isascii():
        return np.frombuffer(joined.encode("ascii"), dtype=np.uint8)
    return np.minimum(np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32), _TABLE - 1)


def _kinds_of(code: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint8]:
    if code.dtype == np.uint8:
        return np.frombuffer(code.tobytes().translate(_kinds()[:256].tobytes()), dtype=np.uint8)
    found: NDArray[np.uint8] = _kinds().take(code)
    return found


def _without(values: NDArray[Any], positions: Integers) -> NDArray[Any]:
    edges = [0, *(positions + 1).tolist()]
    ends = [*positions.tolist(), len(values)]
    return np.concatenate([values[start:end] for start, end in zip(edges, ends, strict=True)])


def _settle(code: NDArray[np.unsignedinteger[Any]], kind: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Integers]:
    """Decide the characters whose kind hangs on their neighbours; returns the kinds, and which commas must vanish."""
    padding = 4
    padded = np.full(len(kind) + 2 * padding, _SEPARATES, dtype=np.uint8)
    padded[padding:-padding] = kind
    hangs = np.flatnonzero(kind >= _HANGS)
    which = kind.take(hangs)
    kind = padded[padding:-padding]

    def at(index: Integers) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = padded.take(index + padding)
        return found

    def those(of_kind: int) -> Integers:
        return hangs.take(np.flatnonzero(which == of_kind))

    dot, dash, back, comma = those(_DOT), those(_DASH), those(_BACKSLASH), those(_COMMA)
    kind[dot] = np.where((at(dot - 1) == _NUMBER) & (at(dot + 1) == _NUMBER), _NUMBER, _SEPARATES)
    # A hyphen inside a word; a - between single letters is a minus sign.
    sides = [at(dash + offset) == _LETTER for offset in (-2, -1, 1, 2)]
    kind[dash] = np.where(sides[0] & sides[1] & sides[2] & sides[3], _SEPARATES, _SYMBOL)
    lone = back.take(np.flatnonzero(at(back + 1) != _LETTER))
    kind[lone] = _SEPARATES
    after = lone[lone < len(code) - 1] + 1
    kind[after[_after_backslash().take(code.take(after))]] = _SEPARATES
    around = [at(comma + offset) == _NUMBER for offset in (-1, 1, 2, 3, 4)]
    thousands = around[0] & around[1] & around[2] & around[3] & ~around[4]
    kind[comma] = _SEPARATES
    return kind, comma.take(np.flatnonzero(thousands))


def _cut(joined: str, code: NDArray[np.unsignedinteger[Any]], kind: NDArray[np.uint8], vanished: Integers) -> Tokens:
    run = np.zeros(len(kind), dtype=np.bool_)
    same = kind[1:] == kind[:-1]
    run[1:] = ((kind[1:] == _LETTER) & (same | (kind[:-1] == _BACKSLASH))) | ((kind[1:] == _NUMBER) & same)
    cut = np.flatnonzero(~run)
    kind_cut = kind.take(cut)
    is_end = kind_cut == _END
    token = np.flatnonzero((kind_cut != _SEPARATES) & ~is_end)
    start = cut.take(token)
    end = np.append(cut, len(kind)).take(token + 1)
    first = np.append(0, np.searchsorted(token, np.flatnonzero(is_end)))
    kind_K = kind_cut.take(token)
    length = end - start
    hash_K = _token_hashes(code, start, length)
    is_fact = (kind_K == _NUMBER) | (kind_K == _BACKSLASH) | ((kind_K == _LETTER) & (length == 1))
    special = _special()
    where, found = special.table.find(hash_K)
    hash_K[where] = special.becomes.take(found)
    is_fact[where] = (is_fact.take(where) | special.is_fact.take(found)) & ~special.is_loose.take(found)
    dropped = where.take(np.flatnonzero(special.is_dropped.take(found)))
    if len(dropped):
        keep = np.ones(len(hash_K), dtype=np.bool_)
        keep[dropped] = False
        kept = np.flatnonzero(keep)
        hash_K, is_fact, kind_K = hash_K.take(kept), is_fact.take(kept), kind_K.take(kept)
        start, end = start.take(kept), end.take(kept)
        first = first - np.searchsorted(dropped, first)
    is_drawing = np.zeros(len(hash_K), dtype=np.bool_)
    drawn = np.array(list(_drawings(joined)), dtype=np.int64).reshape(-1, 2)
    if len(drawn):
        for from_, to in np.searchsorted(start, drawn - np.searchsorted(vanished, drawn)).tolist():
            is_drawing[from_:to] = True
        is_fact &= ~is_drawing
    return Tokens(
        hash_K=hash_K,
        is_number_K=kind_K == _NUMBER,
        is_fact_K=is_fact,
        is_drawing_K=is_drawing,
        first=first,
        start_K=start,
        end_K=end,
        vanished=vanished,
        joined=joined,
    )


def _drawings(joined: str) -> Iterator[tuple[int, int]]:
    """Where code of figures starts and ends; at the latest where its text ends."""
    start = joined.find(_DRAWING)
    while start >= 0:
        end = joined.index(_TEXT_END, start)
        closed = joined.find(_DRAWING_END, start, end)
        end = end if closed < 0 else closed + len(_DRAWING_END)
        yield start, end
        start = joined.find(_DRAWING, end)


NUMBER_MASK = np.uint64(0x9E3779B97F4A7C15)
"""Stands for any number where numbers are not to count."""


def masked(tokens: Tokens) -> Hashes:
    """The tokens with every number replaced by one and the same mark."""
    return np.where(tokens.is_number_K, NUMBER_MASK, tokens.hash_K)


def ngrams(hash_K: Hashes, text_K: Integers, size: int) -> tuple[Hashes, Integers]:
    """Hashes of all runs of ``size`` tokens inside one text, and where each starts."""
    count = len(hash_K) - size + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    # No mix: the hashes of tokens are mixed, and every bit of such a sum is as good as theirs.
    total = hash_K[:count] * _FACTORS[0]
    for offset in range(1, size):
        total += hash_K[offset : offset + count] * _FACTORS[offset]
    inside = np.flatnonzero(text_K[:count] == text_K[size - 1 : size - 1 + count])
    return total.take(inside), inside


def whole_texts(hash_K: Hashes, first: Integers) -> Hashes:
    """One hash a text, of all its tokens in order."""
    power, inverse = _powers(len(hash_K) + 1)
    running = np.zeros(len(hash_K) + 1, dtype=np.uint64)
    np.cumsum(hash_K * power[: len(hash_K)], out=running[1:])
    return _mix((running[first[1:]] - running[first[:-1]]) * inverse[first[:-1]])


def _plain(texts: Sequence[str]) -> str:
    r"""Compatibility forms, case, and mathematical characters as LaTeX spells them; each text with its end."""
    others = _replaced(_TEXT_END.join([text for text in texts if not text.isascii()]), _BEFORE_NORMAL)
    # Text by text, because a text that is in normal form already is seen at once.
    normal = _TEXT_END.join([unicodedata.normalize("NFKC", text) for text in others.split(_TEXT_END)])
    rest = iter(_replaced(normal.casefold(), UNICODE_SYMBOLS).split(_TEXT_END))
    return _TEXT_END.join([text.lower() if text.isascii() else next(rest) for text in texts]) + _TEXT_END


_BEFORE_NORMAL = UNICODE_SYMBOLS | {wide: unicodedata.normalize("NFKC", wide) for wide in "，．：；！？（）…\u00a0"}
"""Chinese punctuation too, as it would become anyway: a text without it is often in normal form, which saves much."""


def _replaced(text: str, spellings: Mapping[str, str]) -> str:
    for symbol, spelt in spellings.items():
        if symbol in text:
            text = text.replace(symbol, spelt)
    return text


_TABLE = 1 << 18
_BASE = 0xD6E8FEB86659FD93
_INVERSE = pow(_BASE, -1, 1 << 64)
_LOOKED_AT = 0x3040
"""Characters below are classed one by one; those above are CJK (or rarer) and each a token of its own."""


def _mix(values: Hashes) -> Hashes:
    """Murmur's finaliser, in place: a product modulo 2^64 leaves its low bits weak."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values ^= values >> np.uint64(33)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(33)
    return values


_FACTORS = [np.uint64(pow(_BASE, exponent, 1 << 64)) for exponent in range(3, 19)]


_HANGING = {",": _COMMA, ".": _DOT, "-": _DASH, "\\": _BACKSLASH}


@cache
def _kinds() -> NDArray[np.uint8]:
    kinds = np.full(_TABLE, _SYMBOL, dtype=np.uint8)
    for number in range(_LOOKED_AT):
        character = chr(number)
        if character == _TEXT_END:
            kinds[number] = _END
        elif character in _HANGING:
            kinds[number] = _HANGING[character]
        elif character.isdigit():
            kinds[number] = _NUMBER
        elif character.isalpha():
            kinds[number] = _LETTER
        elif character in "{}$,.;:?!\"'`~&_ " or unicodedata.category(character)[0] in (
            "PZCM" if number > 127 else "C"
        ):
            kinds[number] = _SEPARATES
    return kinds


@cache
def _after_backslash() -> NDArray[np.bool_]:
    r"""Characters that are no token of their own after a backslash: ``\(``, ``\]``, ``\!``."""
    found = np.zeros(_TABLE, dtype=np.bool_)
    found[[ord(character) for character in "()[]!"]] = True
    return found


_power_tables: list[tuple[Hashes, Hashes]] = []


def _powers(length: int) -> tuple[Hashes, Hashes]:
    """Powers of the base and of its inverse modulo 2^64, at least ``length`` of each."""
    if not _power_tables or len(_power_tables[0][0]) < length:
        size = max(1 << 16, 1 << (length - 1).bit_length())
        tables = []
        for base in (_BASE, _INVERSE):
            factors = np.full(size, base, dtype=np.uint64)
            factors[0] = 1
            tables.append(np.multiply.accumulate(factors))
        _power_tables[:] = [(tables[0], tables[1])]
    return _power_tables[0]


def _token_hashes(code: NDArray[np.unsignedinteger[Any]], start: Integers, length: Integers) -> Hashes:
    """One hash for each stretch of characters, which depends on the characters alone.

    The sum of mix(F^k w_k) over the 8-byte words w_k of a token, in each byte of the characters' numbers (ASCII has
    one). A word of zeros adds nothing, so that the hash does not depend on how wide the batch is stored; without the
    mix, two changes in the last bytes of words would often cancel.
    """
    total = np.zeros(len(start), dtype=np.uint64)
    is_narrow = code.dtype == np.uint8
    for plane in range(1 if is_narrow else 3):
        # The last word may be read beyond the end, and is cut to the token's own bytes.
        padded = np.zeros(len(code) + 8, dtype=np.uint8)
        padded[: len(code)] = code if is_narrow else code.astype(np.uint32) >> np.uint32(8 * plane) & np.uint32(255)
        if plane and not padded.any():
            continue
        words = np.ndarray(len(code) + 1, dtype="<u8", buffer=padded, strides=(1,))
        power = _powers(1 << 16)[0][plane + 1 :: 3]
        total += _mix((words[start] & _WORD_MASKS.take(length, mode="clip")) * power[0])
        rest, number = np.flatnonzero(length > 8), 1
        while len(rest) and number < 8:
            at = start.take(rest) + 8 * number
            left = length.take(rest) - 8 * number
            total[rest] += _mix((words[at] & _WORD_MASKS.take(left, mode="clip")) * power[number])
            rest, number = rest.take(np.flatnonzero(left > 8)), number + 1
        for token in rest.tolist():
            at = np.arange(start[token] + 8 * number, start[token] + length[token], 8)
            tail = words[at] & _WORD_MASKS.take(start[token] + length[token] - at, mode="clip")
            power = _powers(3 * (number + len(at)) + 3)[0][plane + 1 :: 3]
            total[token : token + 1] += _mix(tail * power[number : number + len(at)]).sum(dtype=np.uint64)
    return total


_WORD_MASKS = np.array([(1 << 8 * length) - 1 for length in range(9)], dtype=np.uint64)


def _raw_hash(token: str) -> int:
    code = np.array([ord(character) for character in token], dtype=np.uint32)
    return int(_token_hashes(code, np.array([0]), np.array([len(code)]))[0])


class _Special(NamedTuple):
    """Tokens that are respelt, dropped, or facts or not whatever their kind; arrays by number in the table."""

    table: HashTable
    becomes: Hashes
    is_dropped: NDArray[np.bool_]
    is_fact: NDArray[np.bool_]
    is_loose: NDArray[np.bool_]


@cache
def _special() -> _Special:
    facts = (*FACT_SYMBOLS, *FACT_WORDS)
    names = (*facts, *LOOSE_COMMANDS, *LETTERS_OF_WORDS, *SAME_COMMANDS, *(f"\\{name}" for name in DROPPED_COMMANDS))
    written = {_raw_hash(name): name for name in names}
    hashes = np.array(sorted(written), dtype=np.uint64)
    in_order = [written[number] for number in sorted(written)]
    same = [SAME_COMMANDS.get(name, name) for name in in_order]
    is_fact = np.array([name in facts for name in same])
    is_letter = np.array([name in tuple(LETTERS_OF_WORDS) for name in in_order])
    return _Special(
        table=HashTable(hashes),
        becomes=np.array([_raw_hash(name) for name in same], dtype=np.uint64),
        is_dropped=np.array([name.removeprefix("\\") in DROPPED_COMMANDS and name[0] == "\\" for name in in_order]),
        is_fact=is_fact,
        is_loose=(np.array([name in LOOSE_COMMANDS for name in same]) | is_letter) & ~is_fact,
    )
