"""A float for an answer that is one number, as the tolerant references compare them."""

from __future__ import annotations

import math
from collections.abc import Callable

from agpo_bench.grading.latex.grammar import parse
from agpo_bench.grading.latex.limits import LimitError, UnparsedError
from agpo_bench.grading.latex.tree import Add, Call, Const, Mul, Node, Num, Pow, Root

_CONSTANTS = {"pi": math.pi, "e": math.e}
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "ln": math.log, "exp": math.exp, "abs": abs,
}  # fmt: skip


def approximate(text: str) -> float | None:
    """The value of a text of numbers, constants and elementary functions; None if it is anything else."""
    try:
        return _value(parse(text))
    except (LimitError, UnparsedError, ValueError, OverflowError, ZeroDivisionError, TypeError):
        return None


def _value(node: Node) -> float:
    match node:
        case Num(value):
            return float(value)
        case Const(name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case Add(terms):
            return math.fsum(map(_value, terms))
        case Mul(factors):
            return math.prod(map(_value, factors))
        case Pow(base, exponent):
            return _real(_value(base) ** _value(exponent))
        case Root(radicand, degree):
            return _real(_value(radicand) ** (1 / _value(degree)))
        case Call(name, (argument,)) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(argument))
        case _:
            raise ValueError("not a number")


def _real(value: float | complex) -> float:
    if isinstance(value, complex):
        raise ValueError("not a real number")
    return value
