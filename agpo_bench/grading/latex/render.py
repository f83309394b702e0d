"""A normal form as LaTeX that the grammar reads back to the same normal form: the canonical spelling of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from agpo_bench.grading.latex.algebra import Form, Generator, Monomial, normal_form
from agpo_bench.grading.latex.limits import MAX_CHARS, LimitError, UnparsedError
from agpo_bench.grading.latex.tree import (
    Based,
    Braced,
    Bracketed,
    Listed,
    Matrix,
    Node,
    Quantity,
    Ratio,
    Relation,
    SetOperation,
    Text,
)


def render(node: Node) -> str | None:
    """The canonical spelling, or None where there is none (words, relations, what algebra does not read)."""
    try:
        text = _render(node)
    except (UnparsedError, LimitError):
        return None
    return text if len(text) <= MAX_CHARS else None


def _render(node: Node) -> str:
    match node:
        case Bracketed("<" | ">", _, _) | Text() | Relation() | Quantity() | Matrix() | SetOperation() | Based():
            raise UnparsedError("no canonical spelling")
        case Bracketed(opening, closing, items):
            return opening + ",".join(map(_render, items)) + closing
        case Braced(items):
            return "\\{" + ",".join(sorted(map(_render, items))) + "\\}"
        case Listed(items):
            return ", ".join(sorted(map(_render, items)))
        case Ratio(parts):
            return ":".join(map(_render, parts))
    return _form(normal_form(node))


def _form(form: Form) -> str:
    numerator = _polynomial(form.numerator)
    if form.denominator == (((), Fraction(1)),):
        return numerator
    return f"\\frac{{{numerator}}}{{{_polynomial(form.denominator)}}}"


def _polynomial(terms: Sequence[tuple[Monomial, Fraction]]) -> str:
    if not terms:
        return "0"
    text = ""
    for mono, coefficient in terms:
        size = abs(coefficient)
        number = str(size.numerator) if size.denominator == 1 else f"\\frac{{{size.numerator}}}{{{size.denominator}}}"
        symbols = " ".join(_power(generator, exponent) for generator, exponent in mono)
        body = number if not symbols else symbols if size == 1 else f"{number} {symbols}"
        text += ("-" if coefficient < 0 else "+" if text else "") + body
    return text


def _power(generator: Generator, exponent: Fraction) -> str:
    base = _generator(generator)
    if exponent == 1:
        return base
    spelled = str(exponent) if exponent.denominator == 1 else f"{exponent.numerator}/{exponent.denominator}"
    return f"{base}^{{{spelled}}}"


def _generator(generator: Generator) -> str:
    match generator:
        case ("var", str(name)):
            return name
        case ("i",):
            return "i"
        case ("pi",):
            return "\\pi"
        case ("prime" | "composite", int(value)):
            return f"{{{value}}}"
    raise UnparsedError("no canonical spelling")
