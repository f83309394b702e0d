r"""OCW (minerva_math) answers: typed by the gold, compared by the rule of the type.

A gold that is a float is *numeric*: equal exactly, or within a relative tolerance (Llemma's ``np.isclose``, rtol
1e-5). A gold with ``=`` is an *equation*: equal as normalised strings, or ``lhs - rhs`` proportional. Anything else
is an *expression*.

Departures from DeepSeek-Math and Llemma, whose code fails on golds that are zero or negative and on every equation:
exact equality comes first, the tolerance is relative to the larger value (so swapping changes nothing) and has no
absolute part (golds go down to 1e-26), units are removed in ``\mathrm{}`` and with powers too, nothing is evaluated
but an own tree.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from agpo_bench.grading.equality import Outcome, clean, compare, compare_mathematics
from agpo_bench.grading.latex import algebra
from agpo_bench.grading.latex.compare import is_name
from agpo_bench.grading.latex.enclosure import real_value
from agpo_bench.grading.latex.grammar import parse
from agpo_bench.grading.latex.limits import MAX_CHARS, LimitError, UnparsedError
from agpo_bench.grading.latex.tree import Node, Num, Quantity, Relation

AnswerType = Literal["numeric", "equation", "expression"]

_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_TIMES_LETTER = re.compile(r"(?<=[0-9])\s{0,2}[xX]\s{0,2}(?=10\s{0,2}\^)")
_STARS = re.compile(r"\s{0,2}\*\*\s{0,2}")
_UNIT_NAMES = (
    r"(?:[mkMG]?eV|[kM]?J|[munk]?[mgsNWVAKLC]|[cd]m|[kMG]?Hz|[kM]?Pa|[mk]?mol(?:es?)?|[kM]?pc|[kM]yr|ergs?|Gauss|Tesla|Kelvin|Joules?|"
    r"Watts?|Newtons?|Angstroms?|atm|bar|AU|ly|amu|in|ft|lbs?|hr?|min|yrs?|rad(?:ians?)?|sr|cal|kcal|ohms?|F|T|H|M|G|"
    r"years?|days?|hours?|minutes?|seconds?|meters?|metres?|grams?|degrees?|dollars?|units?|percent of .{0,20})"
)
_UNIT = re.compile(
    rf"(?:\\(?:mathrm|text|mbox|rm|textrm)\s?\{{)?[~\s]{{0,2}}(?:\\(?:mu|AA|Omega|degree)(?![A-Za-z])\s?|\\circ\s?)?{_UNIT_NAMES}?"
    r"\}?(?:\s?\^\s?\{?\s?-?\s?[0-9]\s?\}?|[23](?![0-9]))?\}?"
)
_UNIT_JOINT = re.compile(r"[\s~]{0,3}(?:/|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|\*|·|\\,|\\;|\\ |per\b|-)?[\s~]{0,3}")
_NUMBER_END = re.compile(r"(?:[0-9.)}!]|\\pi)(?=[\s~\\A-Zµμ°Ωa-z%]*[A-Za-zµμ°Ω])")
_MAX_UNIT_CHARS = 60


def answer_type(gold: str) -> AnswerType:
    """The type of an item, by its gold alone."""
    text = gold.strip()
    if _FLOAT.fullmatch(text):
        return "numeric"
    return "equation" if "=" in text else "expression"


def ocw_compare(answer: str, gold: str, *, rtol: Fraction) -> Outcome:
    """Whether the answer is right for the gold. For two numbers the order of the arguments does not matter."""
    try:
        return _compare_by_type(answer, gold, rtol)
    except RecursionError:  # the caller's own stack is nearly used up
        return Outcome(False, "too_deep")


def _compare_by_type(answer: str, gold: str, rtol: Fraction) -> Outcome:
    match answer_type(clean(gold)):
        case "numeric":
            return compare_numbers(answer, gold, rtol=rtol)
        case "equation":
            return _compare_equations(answer, gold)
    return compare(answer, gold)


def compare_numbers(first: str, second: str, *, rtol: Fraction) -> Outcome:
    """Exact equality, else ``|a - b| <= rtol · max(|a|, |b|)``; ``unparsed`` if one of the two is not a number."""
    one, other = clean(first), clean(second)
    if one == other:
        return Outcome(True)
    if max(len(one), len(other)) > MAX_CHARS:
        return Outcome(False, "too_long")
    try:
        a, b = number_value(one), number_value(other)
    except LimitError as error:
        return Outcome(False, error.reason)
    except UnparsedError:
        return Outcome(False, "unparsed")
    return Outcome(a == b or abs(a - b) <= rtol * max(abs(a), abs(b)))


@lru_cache(maxsize=8192)
def number_value(text: str) -> Fraction:
    r"""The number that an answer states: ``1.5 \times 10^{3}``, ``1.5e3``, ``\frac{8}{5} \mathrm{~cm}``, ``x = 1.6``,
    ``\pi/4``.

    Raises UnparsedError when it states none and LimitError when it is too large to read.
    """
    problem: Exception = UnparsedError("no number")
    spelled = _STARS.sub("^", _TIMES_LETTER.sub(r"\\times ", text))
    for candidate in (spelled, without_unit(spelled)):
        try:
            return _value(parse(clean(candidate)))
        except (LimitError, UnparsedError) as error:
            problem = error
    raise problem


def _value(node: Node) -> Fraction:
    if isinstance(node, Relation) and node.operators[-1] in ("=", "~") and is_name(node.sides[0]):
        node = node.sides[-1]
    if isinstance(node, Quantity) and node.unit != "degree":
        node = node.value
    if isinstance(node, Quantity):
        node = node.value
    if isinstance(node, Num):
        return node.value
    form = algebra.normal_form(node)
    rational = form.rational
    if rational is not None:
        return rational
    value = real_value(node)
    if value is None:
        raise UnparsedError("no number")
    return Fraction(value)


def without_unit(text: str) -> str:
    r"""The text up to the first number's end whose rest is units: ``3.2 m/s^2``, ``40 \mathrm{~W}``, ``2 \mu m``."""
    for match in _NUMBER_END.finditer(text, max(0, len(text) - 200)):
        rest = text[match.end() :]
        if len(rest) <= _MAX_UNIT_CHARS and _is_unit(rest):
            return text[: match.end()]
    return text


def _is_unit(text: str) -> bool:
    position, found = 0, False
    while position < len(text):
        joint = _UNIT_JOINT.match(text, position)
        assert joint is not None
        unit = _UNIT.match(text, joint.end())
        end = unit.end() if unit is not None else joint.end()
        if end == position:
            return False
        found = found or any(character.isalpha() for character in text[joint.end() : end])
        position = end
    return found


def _compare_equations(answer: str, gold: str) -> Outcome:
    """Both must be equations: the right side alone does not state one."""
    first, second = clean(answer), clean(gold)
    if max(len(first), len(second)) > MAX_CHARS:
        return Outcome(False, "too_long")
    return compare_mathematics(first, second) if "=" in first else Outcome(False)
