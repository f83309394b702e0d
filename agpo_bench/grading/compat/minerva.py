r"""Answer normalisation and answer typing of Minerva (Lewkowycz et al. 2022, Appendix D) and its OCW courses set.

Its defects are part of it: words are removed wherever they occur, so ``ft`` takes the ``ft`` out of ``\infty``, and
"a " takes the variable out of ``a t``.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

_SUBSTITUTIONS = (
    ("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text"),
    (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}"),
)  # fmt: skip
_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "ft", "hours", "km", "units", "\\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
    "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots",
)  # fmt: skip
_UNITS = (
    "eV", " \\mathrm{~kg} \\cdot \\mathrm{m} / \\mathrm{s}", " kg m/s", "kg*m/s", "kg", "m/s", "m / s", "m s^{-1}",
    "\\text{ m/s}", " \\mathrm{m/s}", " \\text{ m/s}", "g/mole", "g/mol", "\\mathrm{~g}",
    "\\mathrm{~g} / \\mathrm{mol}", "W", "erg/s", "years", "year", "cm",
)  # fmt: skip
_DECIMAL = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_PLAIN = re.compile(_DECIMAL)
_ARITHMETIC = re.compile(rf"({_DECIMAL})\s*(/|\*)\s*({_DECIMAL})")
_POWER_OF_TEN = re.compile(
    rf"({_DECIMAL})\s*(?:\\times|\\cdot|\*|x|×)\s*10\s*(?:\^|\*\*)\s*\{{?\s*([+-]?[0-9]{{1,3}})\s*\}}?"
)
_LATEX_FRACTION = re.compile(rf"(-?)\s*\\[dt]?frac\{{({_DECIMAL})\}}\{{({_DECIMAL})\}}")


def normalize(text: str) -> str:
    """Minerva's ``normalize_final_answer``."""
    text = text.rsplit("=", 1)[-1]
    for before, after in _SUBSTITUTIONS:
        text = text.replace(before, after)
    for removed in _REMOVED:
        text = text.replace(removed, "")
    text = _inside_dollars(text)
    for command in ("text", "textbf", "overline", "boxed"):
        text = _unwrap(text, command, first_only=command == "boxed")
    text = re.sub(r"(frac)([^{])(.)", r"frac{\2}{\3}", text)
    text = re.sub(r"(sqrt)([^{])", r"sqrt{\2}", text)
    text = text.replace("$", "")
    return text.replace(",", "") if text.replace(",", "").isdigit() else text


def _inside_dollars(text: str) -> str:
    first = text.find("$")
    second = text.find("$", first + 1) if first >= 0 else -1
    return f"${text[first + 1 : second]}$" if second > 0 and "\n" not in text else text


def _unwrap(text: str, command: str, *, first_only: bool) -> str:
    r"""``\command{X}`` -> X; ``boxed`` to the last brace of the line, the others to the next brace."""
    if first_only:
        return re.sub(rf"\\{command}\{{([^\n]*)\}}", r"\1", text)
    return re.sub(rf"\\{command}\{{([^}}\n]*)\}}", r"\1", text)


def numeric_value(text: str) -> float | None:
    """The number an OCW answer is read as, units from a fixed list removed; None if it is none.

    The references call Python's or sympy's evaluator here. This reads plain numbers, powers of ten, one product or
    quotient and one LaTeX fraction, which is all that the set's answers use.
    """
    for unit in _UNITS:
        text = text.replace(unit, "")
    text = text.replace("$", "").strip().replace("\\mathrm{m}", "").strip()
    if _PLAIN.fullmatch(text):
        value = Fraction(text)
    elif match := _POWER_OF_TEN.fullmatch(text):
        value = Fraction(match.group(1)) * Fraction(10) ** int(match.group(2))
    elif match := _ARITHMETIC.fullmatch(text):
        left, right = Fraction(match.group(1)), Fraction(match.group(3))
        if match.group(2) == "/" and not right:
            return None
        value = left / right if match.group(2) == "/" else left * right
    elif match := _LATEX_FRACTION.fullmatch(text):
        if not Fraction(match.group(3)):
            return None
        value = Fraction(match.group(1) + "1") * Fraction(match.group(2)) / Fraction(match.group(3))
    else:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def numbers_equal(first: float | None, second: float | None) -> bool:
    """Relative 1e-5; where a value or the difference is about 0, |d| < 1 % of the mean (never if negative)."""
    if first is None or second is None:
        return False
    if any(math.isclose(value, 0, rel_tol=0, abs_tol=1e-8) for value in (first, second, first - second)):
        return abs(first - second) < 0.01 * (first + second) / 2
    return abs(first - second) <= 1e-8 + 1e-5 * abs(second)


def answer_type(gold: str) -> str:
    """``numeric`` if the gold is a Python float literal, ``equation`` if it holds ``=``, else ``expression``."""
    if _PLAIN.fullmatch(gold.strip().replace("_", "")):
        return "numeric"
    return "equation" if "=" in gold else "expression"
