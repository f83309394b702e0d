r"""Numbers as they stand in running text and LaTeX, read exactly.

One left-to-right scan finds every quantity: ``1,450``, ``.5``, ``-$3``, ``3\times10^{-7}``, ``2^{10}``, ``3/4``,
``\frac12``, ``1 1/4``, ``2\frac{1}{2}``, ``3又5分之2``, ``5分之3``, ``十八``, ``3万5千``, ``1.5亿``, ``25\%``,
``1.45 million``. Digits of an exponent, of an index or of a word (``m^2``, ``x_1``, ``CO2``) are no quantity. Values
are fractions, never floats. The text is already normalised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from agpo_bench.grading.chinese import NUMERAL_CHARACTERS, parse_numeral

MAX_DIGITS = 400
"""A number with more digits is found but not read: its value is None. Real answers have under 20."""

_SEPARATOR = r"(?:,|\{,\}|,?\\[,!])"
_DECIMAL = re.compile(rf"(?:[0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+")
_DIGITS = re.compile("[0-9]+")
_NOT_DIGITS = re.compile(r"[^0-9.]")
_START = re.compile(rf"[0-9]|\.(?=[0-9])|\\[dtc]?frac(?![A-Za-z])|[{NUMERAL_CHARACTERS}]")
_FRAC = re.compile(
    r"\\[dtc]?frac\s{0,2}"
    r"(?:\{\s{0,2}(-?[0-9][0-9,]{0,60}(?:\.[0-9]{1,60})?)\s{0,2}\}|([0-9]))\s{0,2}"
    r"(?:\{\s{0,2}(-?[0-9][0-9,]{0,60}(?:\.[0-9]{1,60})?)\s{0,2}\}|([0-9]))"
)
_SLASH = re.compile(r" ?/ ?([0-9]+(?:\.[0-9]+)?)(?!\s?/\s?[0-9])")
_MIXED_SLASH = re.compile(r" {1,2}([0-9]{1,9})/([0-9]{1,9})(?![0-9/])")
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,4})(?![0-9A-Za-z])")
_TIMES_TEN = re.compile(
    r" ?(?:\\times|\\cdot|×|\*|·|x) ?10 ?\^ ?(?:\{ ?([+-]?[0-9]{1,4}) ?\}|\(([+-]?[0-9]{1,4})\)|([+-]?[0-9]{1,4}))"
)
_POWER = re.compile(r" ?(?:\^|\*\*) ?(?:\{ ?([+-]?[0-9]{1,4}) ?\}|([+-]?[0-9]{1,4}))")
_PERCENT = re.compile(r" ?(?:\\ ?)?(?:\\?%|percent\b|per cent\b)")
_SCALE_ZH = re.compile(r" ?(百(?!分)|千(?![克米瓦卡焦帕伏赫]))?(万亿|万|亿)?")
_SCALE_EN = re.compile(r"[ -](?:\\text\{ ?)?(hundred|thousand|million|billion|trillion)s?\b", re.IGNORECASE)
_PARTS_OF = re.compile(rf"分之([0-9]{{1,30}}(?:\.[0-9]{{1,30}})?|[{NUMERAL_CHARACTERS}]{{1,30}})")
_AND = re.compile(r" ?又 ?")
_NUMERAL = re.compile(f"[{NUMERAL_CHARACTERS}]+")
_SCALES = {
    "": 1, "百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8, "万亿": 10**12,
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_CURRENCY = "$¥€£"
_CURRENCY_WORDS = ("usd", "us", "rs", "rm", "hk", "rmb", "cny", "eur", "php", "x")
_IDIOMS = re.compile(r"一(?=[共样起定般直些边])|(?<=第)[一二三四五六七八九十]+|[三四](?=[角边])|十(?=分[^之])|万(?=一)")
"""Characters that are numerals elsewhere and words here: 一共, 一样, 第三, 三角形, 十分, 万一."""


@dataclass(frozen=True)
class Quantity:
    """One number of a text."""

    value: Fraction | None
    """None when it is too long to be read."""
    start: int
    end: int
    is_percent: bool = False
    """A percent sign follows; ``value`` is the number before it."""
    is_numeral: bool = False
    """Written in Chinese characters only."""


def find_quantities(text: str, *, scale_is_unit: bool = False) -> Iterator[Quantity]:
    """Every quantity of a normalised text, left to right, not overlapping.

    With ``scale_is_unit`` a scale word after the number (万, million) is part of its unit and does not multiply: so
    where the question itself asks "how many million".
    """
    position = 0
    while match := _START.search(text, position):
        start = match.start()
        if idiom := _IDIOMS.match(text, start):
            position = idiom.end()
            continue
        found = _read(text, start, scale_is_unit=scale_is_unit)
        if found is None:
            digits = _DIGITS.match(text, start)
            position = digits.end() if digits else match.end()
            continue
        yield found
        position = found.end


def _read(text: str, start: int, *, scale_is_unit: bool) -> Quantity | None:
    character = text[start]
    if character == "\\":
        frac = _FRAC.match(text, start)
        value = None if frac is None else _frac_value(frac)
        if frac is None or value is None:
            return None
        return _finish(text, start, frac.end(), value, scale_is_unit=scale_is_unit)
    if character in NUMERAL_CHARACTERS:
        return _read_numeral(text, start)
    decimal = _DECIMAL.match(text, start)
    assert decimal is not None
    end = decimal.end()
    if start and text[start - 1] in "0123456789." and not text.endswith("..", 0, start):
        return None  # the tail of something like 1.2.3, which is no number
    if _is_index_or_word(text, start):
        return None
    digits = _NOT_DIGITS.sub("", decimal.group())
    if len(digits) > MAX_DIGITS:
        return Quantity(None, start, end)
    value = Fraction(digits)
    if exponent := _EXPONENT.match(text, end):
        scaled = _shift(value, int(exponent.group(1)))
        return Quantity(scaled if scaled is None or not _is_negative(text, start) else -scaled, start, exponent.end())
    if power := _TIMES_TEN.match(text, end):
        scaled = _shift(value, int(power.group(1) or power.group(2) or power.group(3)))
        return Quantity(scaled if scaled is None or not _is_negative(text, start) else -scaled, start, power.end())
    if power := _POWER.match(text, end):
        raised = _raise(value, int(power.group(1) or power.group(2)))
        # -2^2 is -(2^2)
        return Quantity(raised if raised is None or not _is_negative(text, start) else -raised, start, power.end())
    is_whole = "." not in digits
    if is_whole and (mixed := _MIXED_SLASH.match(text, end)) and 0 < int(mixed.group(1)) < int(mixed.group(2)):
        return _finish(
            text,
            start,
            mixed.end(),
            value + Fraction(int(mixed.group(1)), int(mixed.group(2))),
            scale_is_unit=scale_is_unit,
        )
    if is_whole and text.startswith("\\", end + (text[end : end + 1] == " ")):
        frac = _FRAC.match(text, end + (text[end : end + 1] == " "))
        part = None if frac is None else _frac_value(frac)
        if frac is not None and part is not None and 0 < part < 1:
            return _finish(text, start, frac.end(), value + part, scale_is_unit=scale_is_unit)
    if slash := _SLASH.match(text, end):
        if len(slash.group(1)) > MAX_DIGITS:
            return Quantity(None, start, slash.end())
        if divisor := Fraction(slash.group(1)):
            return _finish(text, start, slash.end(), value / divisor, scale_is_unit=scale_is_unit)
    if is_whole and (conjunction := _AND.match(text, end)):
        after = _read_part_after_and(text, conjunction.end())
        if after is not None:
            return _finish(text, start, after[1], value + after[0], scale_is_unit=scale_is_unit)
    if parts := _PARTS_OF.match(text, end):
        numerator = _plain_value(parts.group(1))
        if numerator is not None and value:
            return _finish(text, start, parts.end(), numerator / value, scale_is_unit=scale_is_unit)
    return _finish(text, start, end, value, scale_is_unit=scale_is_unit)


def _finish(text: str, start: int, end: int, value: Fraction, *, scale_is_unit: bool) -> Quantity:
    """Add the sign before the number and the scale words or percent sign after it."""
    is_negative = _is_negative(text, start)
    if not scale_is_unit:
        value, end = _apply_scales(text, value, end)
    if percent := _PERCENT.match(text, end):
        return Quantity(-value if is_negative else value, start, percent.end(), is_percent=True)
    return Quantity(-value if is_negative else value, start, end)


def _apply_scales(text: str, value: Fraction, end: int) -> tuple[Fraction, int]:
    """Multiply by scale words; 3万5千 adds a smaller scaled number to a larger one."""
    for _ in range(3):  # "two hundred thousand million" has three
        word = _SCALE_EN.match(text, end)
        if word is None:
            break
        value, end = value * _SCALES[word.group(1).lower()], word.end()
    scale, scale_end = _chinese_scale(text, end)
    if scale == 1:
        return value, end
    total, end = value * scale, scale_end
    for _ in range(3):
        decimal = _DECIMAL.match(text, end)
        if decimal is None or len(decimal.group()) > 8:
            break
        smaller, smaller_end = _chinese_scale(text, decimal.end())
        part = Fraction(_NOT_DIGITS.sub("", decimal.group())) * smaller
        if part >= scale:
            break
        total, end, scale = total + part, smaller_end, smaller
        if smaller == 1:
            break
    return total, end


def _chinese_scale(text: str, end: int) -> tuple[int, int]:
    match = _SCALE_ZH.match(text, end)
    assert match is not None
    small, large = match.groups(default="")
    return (_SCALES[small] * _SCALES[large], match.end()) if small or large else (1, end)


def _read_numeral(text: str, start: int) -> Quantity | None:
    if text[start] == "点":
        return None
    run = _NUMERAL.match(text, start)
    assert run is not None
    end = run.end()
    while end > start and text[end - 1] == "点":
        end -= 1
    is_hundredths = text.startswith("百分之", start)
    if is_hundredths:
        part = _PARTS_OF.match(text, start + 1)
        value = None if part is None else _plain_value(part.group(1))
        if part is None or value is None:
            return None
        return Quantity(-value if _is_negative(text, start) else value, start, part.end(), True, True)
    value = parse_numeral(text[start:end])
    if value is None:
        # the whole run was tried: skip it, or a long run would be tried again from each of its characters
        return Quantity(None, start, end, is_numeral=True) if end - start > 40 else None
    if value.denominator == 1:
        if parts := _PARTS_OF.match(text, end):
            numerator = _plain_value(parts.group(1))
            if numerator is not None and value:
                value, end = numerator / value, parts.end()
        elif (conjunction := _AND.match(text, end)) and (part_after := _read_part_after_and(text, conjunction.end())):
            value, end = value + part_after[0], part_after[1]
    return Quantity(-value if _is_negative(text, start) else value, start, end, is_numeral=True)


def _read_part_after_and(text: str, start: int) -> tuple[Fraction, int] | None:
    """The proper fraction after 又: a LaTeX fraction, ``1/4`` or 五分之二."""
    if frac := _FRAC.match(text, start):
        value = _frac_value(frac)
        return None if value is None else (value, frac.end())
    head = _NUMERAL.match(text, start) or _DECIMAL.match(text, start)
    if head is None or len(head.group()) > 30:
        return None
    first = _plain_value(head.group())
    if first and (parts := _PARTS_OF.match(text, head.end())):
        numerator = _plain_value(parts.group(1))
        return None if numerator is None else (numerator / first, parts.end())
    slash = _SLASH.match(text, head.end())
    if first is not None and slash and len(slash.group(1)) < 30 and Fraction(slash.group(1)):
        return first / Fraction(slash.group(1)), slash.end()
    return None


def _plain_value(text: str) -> Fraction | None:
    return Fraction(_NOT_DIGITS.sub("", text)) if text[0].isascii() else parse_numeral(text)


def _frac_value(frac: re.Match[str]) -> Fraction | None:
    top, bottom = (Fraction((frac.group(i) or frac.group(i + 1)).replace(",", "")) for i in (1, 3))
    return top / bottom if bottom else None


def _shift(value: Fraction, exponent: int) -> Fraction | None:
    return value * Fraction(10) ** exponent if abs(exponent) <= MAX_DIGITS else None


def _raise(base: Fraction, exponent: int) -> Fraction | None:
    if base == 0:
        return Fraction(0) if exponent > 0 else None
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    return base**exponent if abs(exponent) * size <= 3 * MAX_DIGITS else None


def _is_negative(text: str, start: int) -> bool:
    """Whether a sign belongs to the number: a minus after a number, letter or closing bracket subtracts."""
    position = start - 1
    while position >= 0 and position >= start - 3 and text[position] in _CURRENCY + "\\":
        position -= 1
    if position >= 0 and text[position] == " " and position < start - 1 and text[position - 1 : position] == "-":
        position -= 1  # "- $3"
    if position < 0 or text[position] not in "-负":
        return False
    if text[position] == "负":
        return True
    before = text[position - 1] if position else " "
    return not (before.isalnum() or before in ")]}%_") or "\u4e00" <= before <= "\u9fff"


def _is_index_or_word(text: str, start: int) -> bool:
    """Whether the digits at ``start`` are an exponent, an index or the end of a word."""
    position = start - 1
    if position >= 0 and text[position] in "+-":
        position -= 1
    if position >= 1 and text[position] == "{" and text[position - 1] in "^_":
        return True
    if position >= 0 and text[position] in "^_":
        return True
    position = start - 1
    if position < 0 or not (text[position].isascii() and text[position].isalpha()):
        return False
    first = position
    while first > 0 and first > start - 24 and text[first - 1].isascii() and text[first - 1].isalpha():
        first -= 1
    if first > 0 and text[first - 1] == "\\":
        return False  # a command: \times18
    word = text[first:start].lower()
    return word not in _CURRENCY_WORDS or (word == "x" and not (first and text[first - 1].isdigit()))
