r"""Answers that are one number: GSM8K and CMATH.

Where the answer stands, in this order: the last ``\boxed{}``, the last ``####``, the last "answer is" / 答案是, the
last number. Equality is of exact fractions: 18 = 18.0 = 1.8e1, -3 is not 3, and no answer is right at 100 times its
size.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, pairwise
from typing import Literal

from agpo_bench.grading.extraction import last_boxed, visible_text
from agpo_bench.grading.normalise import MAX_RESPONSE_CHARS, normalise_text
from agpo_bench.grading.quantity import Quantity, find_quantities
from agpo_bench.records import Reference, Verdict

NumberStyle = Literal["gsm8k", "cmath"]

RELATIVE_TOLERANCE = Fraction(1, 1000)
"""CMATH between two decimals (PROTOCOLS: "tolerance 1e-3 relative only when the gold is a decimal")."""
_MAX_QUANTITIES = 20_000
"""More numbers than this in one stretch of text are not an answer."""
_CUE = re.compile(
    r"answer\s{0,3}(?:\*\*\s{0,3})?is\b\s{0,3}:?|final answer\s{0,3}:"
    r"|(?:故?答案(?:应)?[是为]|故?答案\s?:|故答案)\s?:?|答\s?:",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(
    r"\n|。|[.!?;](?=\s|$)|;|\bbecause\b|\bsince\b|\bnot\b|\brather than\b|\binstead of\b|因为|[,\s]?而?不是"
)
_HASHES = re.compile(r"####[ \t]{0,8}([^\n#]{0,400})")
_EQUALS = re.compile(r"=|\\approx(?![A-Za-z])|≈")
_OPERATOR = re.compile(r"[\s$]{0,3}(?:[+\-*/×÷x]|\\times|\\div|\\cdot)[\s$]{0,3}[\\$(]{0,3}[0-9]")
_NOTHING_BETWEEN = re.compile(
    r"[\s:$*_\\(\[{}\"'`¥€£~-]*"
    r"(?:(?:approximately|about|therefore|thus|simply|equal to|约|大约|:)[\s$]{0,3})?"
    r"[\s:$*_\\(\[{}\"'`¥€£~-]*"
)
_SPACED_THOUSANDS = re.compile(r"[0-9]{1,3}(?: [0-9]{3}){1,6}")
_ASKED_SCALE = re.compile(
    r"(?:多少|几)个?[十百千]?[万亿]|(?:how many|in) (?:thousand|million|billion|trillion|hundred)s?\b", re.IGNORECASE
)
_OTHER_MATHEMATICS = re.compile(
    r"\\(?:sqrt|pi|log|ln|sin|cos|tan|binom|sum|prod|int|infty|max|min|gcd|lcm|[lr]?floor|[lr]?ceil|b?mod|pm|mp"
    r"|neq?|[lg]eq?|[lg]eqslant|lt|gt)(?![a-z])|[π√∞!±∓≠<>≤≥]|[0-9)]\s?\^\s?\{?[a-z]|[0-9]\s?[xyzi](?![A-Za-z])"
    r"|[0-9]\s?_\s?\{?\s?[0-9]|^\(\s?-?[0-9.]+\s?,\s"
    r"|^(?:\\text\{)?\s?(?:not|(?:less|more|greater|fewer) than|under|over|above|below)\b|不[是等]|[大小多少]于"
)
"""What makes the number beside it another value, or none: 18 is not the square root of 18, nor is "> 18" a number."""
_ALTERNATIVE = re.compile(
    r"(?P<unit>[\s$*]{0,3}(?:\\?%|°|[A-Za-z]{1,14}|[个元米人只千克厘分角本张天小时]{1,3})?)[\s$*]{0,3}"
    r"(?:(?:,\s?)?(?:\bor\b|或者?是?|还是|/?\s?或)|(?P<joint>,\s?(?:and\b)?|、|\band\b|和|与)|~|到|至|\bto\b|:(?=[0-9])(?!00))"
    r"[\s$*¥€£\\(]{0,4}(?:maybe |perhaps |possibly |可能是?)?(?=-?[0-9.\\]|[一二两三四五六七八九十])",
    re.IGNORECASE,
)
"""From one number to another that is stated beside it."""
_FULL_HOUR = re.compile(r"(?<=[0-9]):00(?![0-9:])")
_UNIT_AFTER = re.compile(r"[\s$*]{0,3}([A-Za-z]{1,14})")
_CLOSES = re.compile(r"[\s$*)\]}]{0,4}(?:\\?%|°|[A-Za-z]{1,14}|[\u4e00-\u9fff]{1,3})?[\s$*)\]}.]{0,4}")
_RANGE = re.compile(r"\bbetween[\s$]{0,3}$|介于[\s$]{0,3}$", re.IGNORECASE)
_DENIED = re.compile(r"(?:\bnot|n't(?: be)?|不是|不等于|不为)[\s$:*]{0,3}$", re.IGNORECASE)
_SPACED_SIGN = re.compile(r"^-\s{1,2}(?=[0-9.$\\])")
_EMPTY_LINE = re.compile(r"[\s$*\\\[\]():_-]*")


@dataclass(frozen=True)
class _Found:
    quantity: Quantity | None
    """None: an answer is stated, and it is not one number (``18 or 19``, ``> 18``)."""
    has_marker: bool
    """Stated in a box or after ``####``."""


def extract_number(response: str, *, question: str = "") -> str | None:
    """The stated answer in canonical form (``18``, ``-3.5``, ``1/3``, ``40%``), or None."""
    found = _find(visible_text(response), scale_is_unit=_asks_in_scale(question))
    if found is None or found.quantity is None or found.quantity.value is None:
        return None
    return _canonical(found.quantity)


def number_value(text: str) -> tuple[Fraction, bool] | None:
    """Value and percent sign of a text that holds exactly one number (``= 18 元``, ``$1,450$``), else None."""
    quantity = _only_quantity(normalise_text(text))
    return None if quantity is None or quantity.value is None else (quantity.value, quantity.is_percent)


class NumberGrader:
    r"""One number, compared exactly.

    ``gsm8k``: a percent sign is a unit, as every other. ``cmath``: a percent sign divides by 100, and two decimals that
    differ by at most 1/1000 of the larger are equal. *Decimal* means a value with a finite decimal expansion that is no
    integer, on both sides: so the rule is symmetric, and it accepts nothing near an integer or a gold like 1/3.

    A scale word multiplies (1.45 million, 3万), except where the question itself asks for that unit (多少万元).
    """

    def __init__(self, *, style: NumberStyle = "gsm8k") -> None:
        if style not in ("gsm8k", "cmath"):
            raise ValueError(f"no number style {style!r}; there are gsm8k, cmath")
        self.style = style

    def grade(self, response: str, reference: Reference) -> Verdict:
        """Judge one response. Never raises for anything a model can write."""
        started = time.perf_counter()

        def verdict(score: float, answer: str | None, reason: str, **alternatives: float) -> Verdict:
            alternatives = {"strict": 0.0, **({"xiaomi_lenient": 0.0} if self.style == "cmath" else {}), **alternatives}
            return Verdict(
                score=score,
                answer=answer,
                reason=reason,
                seconds=time.perf_counter() - started,
                is_error=reason == "gold_unreadable",
                alternatives=alternatives,
            )

        gold = self._read_gold(reference)
        if gold is None:
            return verdict(0.0, None, "gold_unreadable")
        if len(response) > MAX_RESPONSE_CHARS:
            return verdict(0.0, None, "too_long")
        text = visible_text(response)
        lenient = {}
        if self.style == "cmath":
            from agpo_bench.grading.compat.xiaomi import is_leniently_right

            lenient["xiaomi_lenient"] = float(is_leniently_right(text, reference.gold))
        found = _find(text, scale_is_unit=_asks_in_scale(reference.question))
        if found is None:
            return verdict(0.0, None, "no_answer", **lenient)
        if found.quantity is None:
            return verdict(0.0, None, "ambiguous", **lenient)
        if found.quantity.value is None:
            return verdict(0.0, None, "too_long", **lenient)
        answer = _canonical(found.quantity)
        is_right = self.are_equivalent(answer, gold)
        return verdict(
            float(is_right), answer, "correct" if is_right else "wrong",
            strict=float(is_right and found.has_marker), **lenient,
        )  # fmt: skip

    def grade_many(self, pairs: Sequence[tuple[str, Reference]]) -> list[Verdict]:
        """Judge many; the verdicts come in the order of the pairs, one each."""
        return [self.grade(response, reference) for response, reference in pairs]

    def are_equivalent(self, first: str, second: str) -> bool:
        """Whether two extracted answers are one vote: symmetric and reflexive."""
        if first == second:
            return True
        one, other = number_value(first), number_value(second)
        if one is None or other is None:
            return False
        return self._are_equal(*one, *other)

    def _are_equal(self, first: Fraction, first_is_percent: bool, second: Fraction, second_is_percent: bool) -> bool:
        if self.style == "gsm8k":
            return first == second
        first = first / 100 if first_is_percent else first
        second = second / 100 if second_is_percent else second
        if first == second:
            return True
        if not (_is_decimal(first) and _is_decimal(second)):
            return False
        return abs(first - second) <= RELATIVE_TOLERANCE * max(abs(first), abs(second))

    def _read_gold(self, reference: Reference) -> str | None:
        gold = reference.gold.rpartition("####")[2]
        quantity = _only_quantity(normalise_text(gold), scale_is_unit=_asks_in_scale(reference.question))
        return None if quantity is None or quantity.value is None else _canonical(quantity)


def _is_decimal(value: Fraction) -> bool:
    denominator = value.denominator
    while denominator % 2 == 0:
        denominator //= 2
    while denominator % 5 == 0:
        denominator //= 5
    return denominator == 1 and value.denominator != 1


def _canonical(quantity: Quantity) -> str:
    """One spelling a value: digits with a point if the expansion is finite and short, else numerator/denominator."""
    value = quantity.value
    assert value is not None
    spelled = str(value)
    if value.denominator != 1 and _is_decimal(value):
        places = 0
        while (value * 10**places).denominator != 1 and places <= 30:
            places += 1
        if places <= 30:
            digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
            spelled = f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return spelled + ("%" if quantity.is_percent else "")


def _asks_in_scale(question: str) -> bool:
    return bool(question) and _ASKED_SCALE.search(question) is not None


def _find(text: str, *, scale_is_unit: bool) -> _Found | None:
    boxed = last_boxed(text)
    if boxed is not None:
        return _Found(_only_quantity(boxed, scale_is_unit=scale_is_unit), True)
    for line in reversed(_HASHES.findall(text)):
        stated = _from_clause(line, scale_is_unit=scale_is_unit)
        if stated is not None:
            return _Found(stated.quantity, True)
    for end, cue in _last_cues(text):
        clause = _clause_after(text, end)
        if "吗" in clause:  # 答案是12吗 asks
            continue
        stated = _from_clause(clause, scale_is_unit=scale_is_unit, prefers_last="答" in cue and "案" not in cue)
        if stated is not None:
            return stated
    quantity = _last_quantity(text, scale_is_unit=scale_is_unit)
    return None if quantity is None else _Found(quantity, False)


def _last_cues(text: str) -> list[tuple[int, str]]:
    # A response repeats the cue a few times; thousands of them are noise, and each costs a clause.
    return [(match.end(), match.group()) for match in _CUE.finditer(text)][-50:][::-1]


def _clause_after(text: str, start: int) -> str:
    """What is said from ``start`` to the end of the sentence; past line ends while nothing has been said."""
    window = text[start : start + 600]
    offset = 0
    for _ in range(4):
        end = _CLAUSE_END.search(window, offset)
        if end is None:
            return window
        if _EMPTY_LINE.fullmatch(window[: end.start()]) and end.group() == "\n":
            offset = end.end()
            continue
        return window[: end.start()]
    return ""


def _from_clause(clause: str, *, scale_is_unit: bool, prefers_last: bool = False) -> _Found | None:
    """The number a clause states; no quantity where it states two ("18 or 19") or a range.

    The one that comes first with nothing before it ("answer is $18 for 2 nights"), unless an operation follows
    ("is 2*9 = 18"): then the one after the last ``=``. Failing these, the last of the clause.
    """
    quantities = list(islice(find_quantities(clause, scale_is_unit=scale_is_unit), 200))
    digits = [quantity for quantity in quantities if not quantity.is_numeral]
    quantities = digits or quantities
    if not quantities:
        return None
    chosen = _chosen(clause, quantities, prefers_last=prefers_last)
    return _Found(None if _is_one_of_several(clause, quantities, chosen) else quantities[chosen], False)


def _chosen(clause: str, quantities: Sequence[Quantity], *, prefers_last: bool) -> int:
    first = quantities[0]
    is_direct = first.start <= 60 and _NOTHING_BETWEEN.fullmatch(clause, 0, first.start) is not None
    if is_direct and not prefers_last and not _OPERATOR.match(clause, first.end):
        return 0
    after = _after_equals(clause)
    if after is not None:
        right = [index for index, quantity in enumerate(quantities) if quantity.start >= after]
        if right:
            return right[0]
    return len(quantities) - 1


def _is_one_of_several(clause: str, quantities: Sequence[Quantity], chosen: int) -> bool:
    """Whether another value stands beside the chosen one as an equal: both cannot be the answer."""
    if _RANGE.search(clause, max(0, quantities[0].start - 20), quantities[0].start) and len(quantities) > 1:
        return True
    for left, right in pairwise(quantities):
        if quantities[chosen] not in (left, right) or _is_same_amount(left, right):
            continue
        joined = _ALTERNATIVE.match(clause, left.end)
        if joined is None or not right.start - 3 <= joined.end() <= right.end:
            continue
        if joined["joint"]:
            # "12, 3 of them red": a comma or "and" joins two answers only where the second ends the clause.
            if left == quantities[chosen] and _CLOSES.fullmatch(clause, right.end):
                return True
            continue
        unit, other_unit = joined["unit"].strip(" $*").lower(), _UNIT_AFTER.match(clause, right.end)
        # "30 minutes or 0.5 hours" is one amount in two units
        if not (unit and other_unit and other_unit[1].lower() != unit):
            return True
    return False


def _is_same_amount(first: Quantity, second: Quantity) -> bool:
    if first.value is None or second.value is None:
        return False
    return first.value == second.value or (
        first.is_percent != second.is_percent
        and (first.value / (100 if first.is_percent else 1) == second.value / (100 if second.is_percent else 1))
    )


def _after_equals(text: str) -> int | None:
    return max((match.end() for match in _EQUALS.finditer(text)), default=None)


def _only_quantity(text: str, *, scale_is_unit: bool = False) -> Quantity | None:
    """The number of a text that is one number with a unit, or an equation that ends in one; None otherwise."""
    text = text.strip().strip("$ ")
    if _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    after = _after_equals(text)
    if after is not None:
        text = text[after:].strip()
    text = _SPACED_SIGN.sub("-", _FULL_HOUR.sub("", text))
    if _OTHER_MATHEMATICS.search(text):
        return None
    quantities = list(islice(find_quantities(text, scale_is_unit=scale_is_unit), 50))
    quantities = [quantity for quantity in quantities if not quantity.is_numeral] or quantities
    if not quantities:
        return None
    first = quantities[0]
    if any((other.value, other.is_percent) != (first.value, first.is_percent) for other in quantities[1:]):
        return None
    return first


def _last_quantity(text: str, *, scale_is_unit: bool) -> Quantity | None:
    """The last number in digits, or if there is none the last in Chinese characters."""
    last: Quantity | None = None
    last_numeral: Quantity | None = None
    # A long text is read from a line near its end: the last number does not depend on what stands far before it.
    tail_start = text.rfind("\n", 0, max(0, len(text) - 20_000)) + 1 if len(text) > 20_000 else 0
    for start in (tail_start, 0) if tail_start else (0,):
        for quantity in islice(find_quantities(text[start:], scale_is_unit=scale_is_unit), _MAX_QUANTITIES):
            if quantity.is_numeral:
                last_numeral = quantity
            elif not _DENIED.search(text, max(0, start + quantity.start - 24), start + quantity.start):
                last = quantity
        if last is not None:
            return last
    return last_numeral
