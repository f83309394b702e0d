r"""CMATH by its authors' rule, in outline: the last two different numbers, either may be right.

Candidates of each line are the numbers that stand beside Chinese text, punctuation, ``=``, ``$`` or a brace, and
``N分之M``. Integers must agree exactly; anything else to 1 % of the gold. So an answer half a unit off a gold of 100
passes, and so does a wrong last number after the right one: a column to report, never a reward.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import islice

from agpo_bench.grading.quantity import Quantity, find_quantities

_FRAC = re.compile(r"\\[dt]?frac\{([0-9.]{1,30})\}\{([0-9.]{1,30})\}")
_JOINED = re.compile(r"(?<=[0-9])[, ](?=[0-9]{3}(?![0-9]))")
_BESIDE = re.compile(r"[\u4e00-\u9fff:,.;!?。、=$¥{}()\s%+*/×÷<>\[\]≈-]")


def is_leniently_right(text: str, gold: str) -> bool:
    """Whether one of the last two different candidates is within 1 % of the gold (exact if both are integers)."""
    expected = next(iter(_candidates(gold)), None)
    return expected is not None and any(_is_close(value, expected) for value in _last_two(text))


def _last_two(text: str) -> list[Fraction]:
    found: list[Fraction] = []
    for value in reversed(_candidates(text[-20_000:])):
        if value not in found:
            found.append(value)
        if len(found) == 2:
            break
    return found


def _candidates(text: str) -> list[Fraction]:
    text = _JOINED.sub("", _FRAC.sub(r"\1/\2", text))
    return [
        _value(quantity)
        for quantity in islice(find_quantities(text, scale_is_unit=True), 10_000)
        if quantity.value is not None and not quantity.is_numeral and _stands_alone(text, quantity)
    ]


def _value(quantity: Quantity) -> Fraction:
    assert quantity.value is not None
    return quantity.value / 100 if quantity.is_percent else quantity.value


def _stands_alone(text: str, quantity: Quantity) -> bool:
    before, after = text[max(0, quantity.start - 1) : quantity.start], text[quantity.end : quantity.end + 1]
    return (not before or bool(_BESIDE.match(before))) or (not after or bool(_BESIDE.match(after)))


def _is_close(value: Fraction, expected: Fraction) -> bool:
    if value.denominator == expected.denominator == 1:
        return value == expected
    return value == expected or (expected != 0 and abs(value - expected) / abs(expected) < Fraction(1, 100))
