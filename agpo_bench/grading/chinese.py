"""Chinese numerals as exact numbers: 十八, 一千二百三十, 三点一四, 二〇二四, 三万五, 负五."""

from __future__ import annotations

from fractions import Fraction

_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "○": 0}
_SMALL_UNITS = {"十": 10, "百": 100, "千": 1000}
_LARGE_UNITS = {"万": 10**4, "亿": 10**8}
NUMERAL_CHARACTERS = "".join({**_DIGITS, **_SMALL_UNITS, **_LARGE_UNITS}) + "点"
_MAX_CHARACTERS = 40
"""The longest number with a name in use (thousands of 亿, to the unit) has 23 characters."""


def parse_numeral(text: str) -> Fraction | None:
    """The value of a numeral written wholly in Chinese characters, or None if it is not one.

    A digit after 百, 千, 万 or 亿 with no 零 before it stands for the next lower place, as spoken: 三万五 is 35,000.
    """
    if not text or len(text) > _MAX_CHARACTERS:
        return None
    whole, point, decimals = text.partition("点")
    if point:
        if not decimals or any(character not in _DIGITS for character in decimals):
            return None
        integer = _parse_integer(whole)
        if integer is None:
            return None
        numerator = int("".join(str(_DIGITS[character]) for character in decimals))
        return integer + Fraction(numerator, 10 ** len(decimals))
    integer = _parse_integer(whole)
    return None if integer is None else Fraction(integer)


def _parse_integer(text: str) -> int | None:
    if not text:
        return None
    if all(character in _DIGITS for character in text):
        return int("".join(str(_DIGITS[character]) for character in text))
    total, section, digit = 0, 0, None
    last_unit, follows_zero = 1, False
    for character in text:
        if character in _DIGITS:
            if digit:  # two digits in a row are no place-value numeral
                return None
            digit = _DIGITS[character]
            follows_zero = follows_zero or digit == 0
        elif character in _SMALL_UNITS:
            unit = _SMALL_UNITS[character]
            if digit is None and unit != 10:
                return None
            section += (1 if digit is None else digit) * unit
            digit, last_unit, follows_zero = None, unit, False
        elif character in _LARGE_UNITS:
            unit = _LARGE_UNITS[character]
            section += digit or 0
            if section == 0 and total == 0:
                return None
            # 万亿 multiplies all that stands before it; 一亿三千万 adds a smaller section.
            total = (total + section) * unit if unit == 10**8 or total == 0 else total + section * unit
            section, digit, last_unit, follows_zero = 0, None, unit, False
        else:
            return None
    if digit:
        section += digit * (last_unit // 10 if last_unit >= 100 and not follows_zero else 1)
    return total + section
