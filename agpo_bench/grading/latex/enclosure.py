"""A float with an error bound: what differs is rejected, and only what agrees is worth a proof. It never accepts.

Each value is (z, r): the exact value lies within about r of the complex float z. Bounds are first order with a factor
of safety, and a difference counts only when it exceeds the bounds many times over. Variables take fixed positive
sample values, so two functions that differ at a sample are different functions.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from zlib import crc32

from agpo_bench.grading.latex.algebra import cached_normal_form
from agpo_bench.grading.latex.limits import LimitError, UnparsedError
from agpo_bench.grading.latex.tree import Add, Call, Const, Mul, Node, Num, Pow, Quantity, Root, Sym

_Ball = tuple[complex, float]
_ULP = 2.0**-50
_MARGIN = 64.0
"""How many times the summed bounds a difference must exceed; pays for the terms of second order."""
_NUM_SAMPLES = 3


class _UnknownError(Exception):
    """No usable bound: an unknown function, an overflow, a branch cut nearby."""


_FAILURES = (_UnknownError, OverflowError, ValueError, ZeroDivisionError, UnparsedError, LimitError)


def agree(first: Node, second: Node) -> bool:
    """Whether two scalars agree at every sample that could be computed, and at one of them to nine digits.

    False rejects: they differ, or nothing is known (an overflow, a function without a bound). True proves nothing.
    """
    is_supported = False
    for sample in range(_NUM_SAMPLES):
        try:
            (a, radius_a), (b, radius_b) = _ball(first, sample), _ball(second, sample)
        except _FAILURES:
            continue
        radius = _MARGIN * (radius_a + radius_b)
        if abs(a - b) > radius + 1e-290:
            return False
        is_supported = is_supported or radius <= 1e-9 * max(abs(a), abs(b), 1e-3)
    return is_supported


def agree_in_proportion(first: Node, second: Node) -> bool:
    """Whether ``first / second`` is the same at every sample that could be computed, and there were two or more."""
    ratios: list[_Ball] = []
    for sample in range(_NUM_SAMPLES):
        try:
            dividend, (b, radius_b) = _ball(first, sample), _ball(second, sample)
            if abs(b) > 4 * radius_b:
                ratios.append(_times(dividend, _rounded(1 / b, 2 * radius_b / abs(b) ** 2)))
        except _FAILURES:
            continue
    return len(ratios) > 1 and all(abs(p - q) <= _MARGIN * (r + s) for (p, r), (q, s) in pairwise(ratios))


def _sample(name: str, sample: int) -> complex:
    """Between 0.3 and 2.3, the same for one name everywhere."""
    return complex(0.3 + 2.0 * crc32(f"{name}/{sample}".encode("utf-8", "replace")) / 2**32)


def _rounded(value: complex, radius: float) -> _Ball:
    if not (cmath.isfinite(value) and math.isfinite(radius)) or abs(value) > 1e250:
        raise _UnknownError
    return value, radius + _ULP * abs(value)


def _ball(node: Node, sample: int) -> _Ball:
    match node:
        case Num(value):
            return _rounded(complex(value.numerator / value.denominator), 0.0)
        case Sym(name):
            return _rounded(_sample(name, sample), 0.0)
        case Const("pi"):
            return _rounded(complex(math.pi), 0.0)
        case Const("e"):
            return _rounded(complex(math.e), 0.0)
        case Const("i"):
            return 1j, 0.0
        case Add(terms):
            balls = [_ball(term, sample) for term in terms]
            largest = max(abs(z) for z, _ in balls)
            return _rounded(sum(z for z, _ in balls), sum(r for _, r in balls) + len(balls) * _ULP * largest)
        case Mul(factors):
            product = _ball(factors[0], sample)
            for factor in factors[1:]:
                product = _times(product, _ball(factor, sample))
            return product
        case Pow(base, exponent):
            return _power(_ball(base, sample), exponent, sample)
        case Root(radicand, degree):
            below = _ball(radicand, sample)
            if isinstance(degree, Num) and degree.value.denominator == 1 and degree.value % 2 and _is_real(below):
                size = abs(below[0].real) ** (1 / int(degree.value))
                radius = below[1] * size / max(abs(below[0]), 1e-300)
                return _rounded(complex(math.copysign(size, below[0].real)), radius)
            inverse = (
                Num(1 / degree.value) if isinstance(degree, Num) and degree.value else Pow(degree, Num(Fraction(-1)))
            )
            return _power(below, inverse, sample)
        case Quantity(value, "degree"):
            return _times(_ball(value, sample), _rounded(complex(math.pi / 180), 0.0))
        case Call(name, arguments) if " " in name:
            # An unknown function or a derivative: a free value, one for each name and arguments.
            key = f"{name} {[cached_normal_form(argument) for argument in arguments]}"
            return _rounded(_sample(key, sample), 0.0)
        case Call(name, arguments):
            return _call(name, [_ball(argument, sample) for argument in arguments])
    raise _UnknownError


def _is_real(ball: _Ball) -> bool:
    return ball[0].imag == 0.0


def _times(first: _Ball, second: _Ball) -> _Ball:
    (a, r), (b, s) = first, second
    return _rounded(a * b, abs(a) * s + abs(b) * r + r * s)


def _power(base: _Ball, exponent: Node, sample: int) -> _Ball:
    a, r = base
    if isinstance(exponent, Num) and exponent.value.denominator == 1 and abs(exponent.value) < 2**31:
        power = int(exponent.value)
        if abs(a) <= 2 * r and power < 0:
            raise _UnknownError
        value = a**power
        return _rounded(value, abs(power) * (r + _ULP * abs(a)) * abs(a) ** (power - 1) * 2 if a else float(r > 0) * r)
    b, s = _ball(exponent, sample)
    if abs(a) <= 4 * r or a == 0:
        raise _UnknownError
    if a.real < 0 and 0 < abs(a.imag) <= 4 * r + _ULP * abs(a):
        raise _UnknownError  # on which side of the branch cut?
    if a.real < 0 and a.imag == 0 and not (isinstance(exponent, Num) and r <= 1e-9 * abs(a)):
        raise _UnknownError
    logarithm = cmath.log(complex(a.real, 0.0) if a.imag == 0 else a)
    value = cmath.exp(b * logarithm)
    relative = abs(b) * r / abs(a) + abs(logarithm) * s + 8 * _ULP * (1 + abs(b * logarithm))
    return _rounded(value, 2 * relative * abs(value))


def _difference(first: _Ball, second: _Ball) -> _Ball:
    (a, r), (b, s) = first, second
    return _rounded(a - b, r + s + _ULP * (abs(a) + abs(b)))


_Function = Callable[[complex], complex]
_FUNCTIONS: dict[str, tuple[_Function, _Function]] = {
    "sin": (cmath.sin, cmath.cos),
    "cos": (cmath.cos, cmath.sin),
    "tan": (cmath.tan, lambda z: 1 / cmath.cos(z) ** 2),
    "cot": (lambda z: 1 / cmath.tan(z), lambda z: 1 / cmath.sin(z) ** 2),
    "sec": (lambda z: 1 / cmath.cos(z), lambda z: cmath.tan(z) / cmath.cos(z)),
    "csc": (lambda z: 1 / cmath.sin(z), lambda z: 1 / (cmath.tan(z) * cmath.sin(z))),
    "sinh": (cmath.sinh, cmath.cosh),
    "cosh": (cmath.cosh, cmath.sinh),
    "tanh": (cmath.tanh, lambda z: 1 / cmath.cosh(z) ** 2),
    "exp": (cmath.exp, cmath.exp),
    "arctan": (cmath.atan, lambda z: 1 / (1 + z * z)),
    "arcsin": (cmath.asin, lambda z: 1 / cmath.sqrt(1 - z * z)),
    "arccos": (cmath.acos, lambda z: 1 / cmath.sqrt(1 - z * z)),
    "ln": (cmath.log, lambda z: 1 / z),
}
"""Name -> function, and its derivative up to sign. ``arcsin``, ``arccos`` and ``ln`` only where they are real."""


def _call(name: str, balls: list[_Ball]) -> _Ball:
    if name in ("log", "lg"):
        numerator = _call("ln", balls[:1])
        below = _call("ln", balls[1:]) if len(balls) > 1 else _rounded(complex(math.log(10)), 0.0)
        (b, s) = below
        if abs(b) <= 4 * s:
            raise _UnknownError
        return _times(numerator, _rounded(1 / b, 2 * s / abs(b) ** 2))
    if name == "binom":
        above, below = balls
        over = _times(_call("factorial", [below]), _call("factorial", [_difference(above, below)]))
        if abs(over[0]) <= 4 * over[1]:
            raise _UnknownError
        return _times(_call("factorial", [above]), _rounded(1 / over[0], 2 * over[1] / abs(over[0]) ** 2))
    if len(balls) != 1:
        raise _UnknownError
    z, radius = balls[0]
    if name == "abs":
        return _rounded(complex(abs(z)), radius)
    if name == "factorial":
        if z.imag != 0 or z.real <= -0.9 or z.real > 100:
            raise _UnknownError
        size = math.gamma(z.real + 1)
        return _rounded(complex(size), 2 * size * radius * (2 + abs(math.log(z.real + 2))) + 64 * _ULP * size)
    if name not in _FUNCTIONS or radius > 1e-3 * (1 + abs(z)):
        raise _UnknownError
    is_inside = z.imag == 0 and abs(z.real) < 1 - 1e-6
    if name in ("arcsin", "arccos") and not is_inside:
        raise _UnknownError
    if name in ("ln", "arctan") and (z.imag != 0 or (name == "ln" and z.real <= 4 * radius)):
        raise _UnknownError
    function, slope = _FUNCTIONS[name]
    value = function(z)
    return _rounded(value, 2 * abs(slope(z)) * (radius + _ULP * abs(z)) + 4 * _ULP * abs(value))


def real_value(node: Node) -> float | None:
    """The float of a constant real scalar, right to about 1e-9 of its size; None for what has variables or is not
    real.
    """
    if _has_variable(node):
        return None
    try:
        value, radius = _ball(node, 0)
    except _FAILURES:
        return None
    if abs(value.imag) > _MARGIN * radius or radius > 1e-9 * abs(value):
        return None
    return value.real


def _has_variable(node: Node) -> bool:
    match node:
        case Sym():
            return True
        case Call(name, _) if " " in name:
            return True
        case Add(parts) | Mul(parts) | Call(_, parts):
            return any(map(_has_variable, parts))
        case Pow(first, second) | Root(first, second):
            return _has_variable(first) or _has_variable(second)
        case Quantity(value, _):
            return _has_variable(value)
    return False
