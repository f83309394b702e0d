"""The remainder that needs a computer algebra system. Imported only by the worker process.

A tree travels as nested lists (``to_wire``); sympy objects are made here by constructors alone, never from a string.
Variables are real. "Equal" means proved: ``simplify`` gives 0, or ``equals`` proves it; a numerical agreement is no
proof.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from agpo_bench.grading.latex.tree import Add, Based, Call, Const, Mul, Node, Num, PlusMinus, Pow, Quantity, Root, Sym

Wire = list[Any]


def to_wire(node: Node) -> Wire:
    """A scalar as JSON-able nested lists. ValueError for anything else."""
    match node:
        case Num(value):
            return ["num", str(value.numerator), str(value.denominator)]
        case Sym(name) | Const(name):
            return ["sym" if isinstance(node, Sym) else "const", name]
        case Add(parts) | Mul(parts):
            return ["add" if isinstance(node, Add) else "mul", *map(to_wire, parts)]
        case Pow(base, exponent):
            return ["pow", to_wire(base), to_wire(exponent)]
        case Root(radicand, degree):
            return ["root", to_wire(radicand), to_wire(degree)]
        case Quantity(value, "degree"):
            return to_wire(Mul((value, Const("pi"), Num(Fraction(1, 180)))))
        case Call(name, arguments):
            return ["call", name, *map(to_wire, arguments)]
        case Based() | PlusMinus():
            pass
    raise ValueError(f"{type(node).__name__} is not a scalar for the worker")


_SYMPY_NAMES = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "arccot": "acot", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "coth": "coth", "exp": "exp", "ln": "log", "abs": "Abs", "floor": "floor", "ceiling": "ceiling",
    "factorial": "factorial", "binom": "binomial", "max": "Max", "min": "Min", "Re": "re", "Im": "im", "gcd": "gcd",
    "lcm": "lcm",
}  # fmt: skip


def build(wire: Wire) -> Any:
    """A sympy expression from a wire tree, by constructors."""
    import sympy

    match wire:
        case ["num", numerator, denominator]:
            return sympy.Rational(int(numerator), int(denominator))
        case ["sym", name]:
            return sympy.Symbol(name, real=True)
        case ["const", name]:
            return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}[name]
        case ["add", *parts]:
            return sympy.Add(*map(build, parts))
        case ["mul", *parts]:
            return sympy.Mul(*map(build, parts))
        case ["pow", base, exponent]:
            return sympy.Pow(build(base), build(exponent))
        case ["root", radicand, degree]:
            value, order = build(radicand), build(degree)
            if order.is_Integer and order % 2 == 1 and value.is_negative:
                return -sympy.root(-value, order)
            return sympy.root(value, order)
        case ["call", ("log" | "lg"), value]:
            return sympy.log(build(value)) / sympy.log(10)
        case ["call", ("log" | "lg"), value, base]:
            return sympy.log(build(value)) / sympy.log(build(base))
        case ["call", str(name), *arguments] if name in _SYMPY_NAMES:
            return getattr(sympy, _SYMPY_NAMES[name])(*map(build, arguments))
        case ["call", str(name), *arguments]:
            # The name is only a label of an undefined function; sympy.Function does not parse it.
            return sympy.Function(name)(*map(build, arguments))
    raise ValueError(f"no such node: {wire[:1]}")


def is_proved_equal(first: Wire, second: Wire) -> bool:
    """Whether the difference is proved to be zero."""
    difference = build(first) - build(second)
    return _is_proved_zero(difference)


def is_proved_proportional(first: Wire, second: Wire) -> bool:
    """Whether ``first = c · second`` with a non-zero number c is proved."""
    import sympy

    ratio = sympy.simplify(build(first) / build(second))
    return bool(ratio.is_number and ratio.is_finite and ratio.is_nonzero)


def _is_proved_zero(difference: Any) -> bool:
    import sympy

    if difference == 0 or sympy.expand(difference) == 0:
        return True
    if difference.has(sympy.zoo, sympy.nan, sympy.oo):
        return False
    if not difference.free_symbols and difference.is_number and not difference.atoms(sympy.Function):
        # An algebraic number is zero exactly if its minimal polynomial is x.
        variable = sympy.Dummy()
        try:
            return bool(sympy.minimal_polynomial(difference, variable) == variable)
        except (NotImplementedError, sympy.polys.polyerrors.BasePolynomialError):
            pass
    return bool(sympy.simplify(difference) == 0 or difference.equals(0) is True)
