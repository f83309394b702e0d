r"""Exact normal forms: rational functions over Q in independent generators.

A generator is a variable, ``pi``, ``i``, the real power p^r of a prime, an exponential ``base^(c·m)`` of a monomial
m, the logarithm of a prime, or an opaque call with its arguments in normal form. A monomial maps generators to
rational exponents; ``i`` keeps exponent 0 or 1 and p^r keeps 0 <= r < 1, the rest goes to the coefficient. Every
rewriting used is an identity, so equal normal forms prove equality. Where all generators are independent over Q
(variables; prime powers, by Besicovitch's theorem; ``i``; one of ``pi`` and the exponentials) different normal forms
prove difference as well: ``Form.is_decisive``.

Long because it is one recursion: polynomials have generators whose keys are normal forms of inner scalars.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb, factorial, gcd, isqrt, lcm

from agpo_bench.grading.latex.limits import (
    MAX_BITS,
    MAX_DECIMAL_EXPONENT,
    MAX_FACTORIAL,
    MAX_POWER,
    MAX_TERMS,
    LimitError,
    UnparsedError,
)
from agpo_bench.grading.latex.tree import Add, Call, Const, Mul, Node, Num, Pow, Quantity, Root, Sym

Generator = tuple[object, ...]
"""(kind, …): ``var name``, ``pi``, ``i``, ``prime p``, ``exp base monomial``, ``ln p``, ``call name forms``, ``root
form``."""
Monomial = tuple[tuple[Generator, Fraction], ...]
"""Generators with non-zero exponents, sorted by their text."""
Polynomial = dict[Monomial, Fraction]

ONE: Monomial = ()
"""The empty product."""
_ZERO = Fraction(0)
_HALF = Fraction(1, 2)
IMAGINARY: Generator = ("i",)
PI: Generator = ("pi",)
_SMALL_PRIMES = [n for n in range(2, 1000) if all(n % d for d in range(2, isqrt(n) + 1))]


@dataclass(frozen=True, slots=True)
class Form:
    """``numerator / denominator``, both tuples of (monomial, coefficient) sorted; the denominator is 1 or has two
    terms or more.
    """

    numerator: tuple[tuple[Monomial, Fraction], ...]
    denominator: tuple[tuple[Monomial, Fraction], ...]

    @property
    def is_decisive(self) -> bool:
        """Whether another such form that is not equal to this one is a different value."""
        kinds = {
            generator[0] for part in (self.numerator, self.denominator) for mono, _ in part for generator, _ in mono
        }
        return kinds <= {"var", "i", "prime", "pi"}

    @property
    def rational(self) -> Fraction | None:
        """The value if it is a rational number."""
        if self.denominator != ((ONE, Fraction(1)),):
            return None
        if not self.numerator:
            return _ZERO
        if len(self.numerator) == 1 and self.numerator[0][0] == ONE:
            return self.numerator[0][1]
        return None


def normal_form(node: Node) -> Form:
    """The normal form of a scalar. UnparsedError: not a scalar of known parts, or undefined (1/0). LimitError: too
    large.
    """
    return _freeze(*_evaluate(node))


@lru_cache(maxsize=16384)
def cached_normal_form(node: Node) -> Form:
    """``normal_form`` for whole answers, of which a group repeats the same few."""
    return normal_form(node)


def are_equal(first: Form, second: Form) -> bool:
    """Whether ``first - second`` is identically zero. Cross-multiplied, so no polynomial division is needed."""
    if first == second:
        return True
    left = _multiply(dict(first.numerator), dict(second.denominator))
    right = _multiply(dict(second.numerator), dict(first.denominator))
    return left == right or not _without_roots(_add(left, {mono: -value for mono, value in right.items()}))


def product(first: Form, second: Form) -> Form:
    """``first · second``."""
    return _product_form(first, second)


def proportion(first: Form, second: Form) -> Fraction | None:
    """The non-zero rational c with ``first = c · second``, if there is one and neither is zero."""
    left = _multiply(dict(first.numerator), dict(second.denominator))
    right = _multiply(dict(second.numerator), dict(first.denominator))
    if not left or left.keys() != right.keys():
        return None
    ratios = {left[mono] / right[mono] for mono in left}
    return ratios.pop() if len(ratios) == 1 else None


# Polynomials


def _check(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise LimitError("too_complex")
    return value


def _add(first: Polynomial, second: Polynomial) -> Polynomial:
    total = dict(first)
    for mono, coefficient in second.items():
        value = total.get(mono, _ZERO) + coefficient
        if value:
            total[mono] = _check(value)
        else:
            total.pop(mono, None)
    if len(total) > MAX_TERMS:
        raise LimitError("too_complex")
    return total


def _multiply(first: Polynomial, second: Polynomial) -> Polynomial:
    if len(first) * len(second) > MAX_TERMS * 8:
        raise LimitError("too_complex")
    product: Polynomial = {}
    for mono_a, coefficient_a in first.items():
        for mono_b, coefficient_b in second.items():
            mono, factor = _join(mono_a, mono_b)
            value = product.get(mono, _ZERO) + coefficient_a * coefficient_b * factor
            if value:
                product[mono] = _check(value)
            else:
                product.pop(mono, None)
    if len(product) > MAX_TERMS:
        raise LimitError("too_complex")
    return product


def _order(item: tuple[Generator, Fraction]) -> str:
    return _text(item[0])


@lru_cache(maxsize=8192)
def _text(generator: Generator) -> str:
    return repr(generator)


def _join(first: Monomial, second: Monomial) -> tuple[Monomial, Fraction]:
    """The product of two monomials and the rational that came out of it."""
    if not first:
        return second, Fraction(1)
    if not second:
        return first, Fraction(1)
    exponents = dict(first)
    for generator, exponent in second:
        exponents[generator] = exponents.get(generator, _ZERO) + exponent
    return _reduce(exponents)


def _reduce(exponents: dict[Generator, Fraction]) -> tuple[Monomial, Fraction]:
    factor = Fraction(1)
    for generator, given in list(exponents.items()):
        kind, exponent = generator[0], given
        if not exponent:
            continue
        if kind in ("prime", "composite") and not 0 <= exponent < 1:
            whole = exponent.numerator // exponent.denominator
            if abs(whole) > MAX_BITS:
                raise LimitError("too_complex")
            prime = generator[1]
            assert isinstance(prime, int)
            factor *= _check(Fraction(prime) ** whole)
            exponents[generator] = exponent - whole
        elif kind == "i" and exponent.denominator == 1 and not 0 <= exponent < 2:
            factor *= 1 if exponent % 4 < 2 else -1
            exponents[generator] = exponent % 2
        elif kind == "e^i pi":
            # e^{i pi c} has period 2 in c; the multiples of 1/2 are powers of i.
            exponent %= 2
            if (2 * exponent).denominator == 1:
                del exponents[generator]
                exponents[IMAGINARY] = exponents.get(IMAGINARY, _ZERO) + 2 * exponent
                return _times(_reduce(exponents), factor)
            exponents[generator] = exponent
    kept = [(generator, exponent) for generator, exponent in exponents.items() if exponent]
    kept.sort(key=_order)
    return tuple(kept), factor


def _times(reduced: tuple[Monomial, Fraction], factor: Fraction) -> tuple[Monomial, Fraction]:
    return reduced[0], reduced[1] * factor


def _freeze(numerator: Polynomial, denominator: Polynomial) -> Form:
    if not denominator:
        raise UnparsedError("division by zero")
    if not numerator:
        return Form((), ((ONE, Fraction(1)),))
    if len(denominator) == 1:
        ((mono, coefficient),) = denominator.items()
        inverse, factor = _reduce({generator: -exponent for generator, exponent in mono})
        numerator = _multiply(numerator, {inverse: factor / coefficient})
        denominator = {ONE: Fraction(1)}
    else:
        content = _content(denominator)
        if denominator[min(denominator, key=repr)] < 0:
            content = -content
        numerator = {mono: _check(value / content) for mono, value in numerator.items()}
        denominator = {mono: _check(value / content) for mono, value in denominator.items()}
    return Form(tuple(sorted(numerator.items(), key=repr)), tuple(sorted(denominator.items(), key=repr)))


def _content(polynomial: Polynomial) -> Fraction:
    """The positive rational that leaves coprime integer coefficients."""
    numerators = gcd(*(value.numerator for value in polynomial.values()))
    denominators = lcm(*(value.denominator for value in polynomial.values()))
    return _check(Fraction(numerators, denominators))


def _without_roots(polynomial: Polynomial) -> Polynomial:
    """A non-zero multiple of the polynomial in which (P)^(k + r) of an opaque root is P^k · (P)^r, 0 <= r < 1."""
    for _ in range(4):
        exponents: dict[Generator, list[Fraction]] = {}
        for mono in polynomial:
            for generator, exponent in mono:
                if generator[0] == "root":
                    exponents.setdefault(generator, []).append(exponent)
        generator_found = next((g for g, found in exponents.items() if min(found) < 0 or max(found) >= 1), None)
        if generator_found is None:
            break
        form = generator_found[1]
        assert isinstance(form, Form)
        lowest = min(0, *(e.numerator // e.denominator for e in exponents[generator_found]), 0)
        wholes = {}
        for mono in polynomial:
            exponent = dict(mono).get(generator_found, _ZERO)
            wholes[mono] = exponent.numerator // exponent.denominator - lowest
        highest = max(wholes.values())
        total: Polynomial = {}
        for mono, value in polynomial.items():
            rest = dict(mono)
            rest[generator_found] = rest.get(generator_found, _ZERO) - wholes[mono] - lowest
            reduced, factor = _reduce(rest)
            part = _multiply({reduced: value * factor}, _polynomial_power(dict(form.numerator), wholes[mono]))
            total = _add(total, _multiply(part, _polynomial_power(dict(form.denominator), highest - wholes[mono])))
        polynomial = total
    return polynomial


# Evaluation of the tree. Values are (numerator, denominator) pairs of polynomials.

_Pair = tuple[Polynomial, Polynomial]


def _constant(value: Fraction) -> _Pair:
    return ({ONE: _check(value)} if value else {}), {ONE: Fraction(1)}


def _single(generator: Generator, exponent: Fraction = Fraction(1)) -> _Pair:
    mono, factor = _reduce({generator: exponent})
    return {mono: factor}, {ONE: Fraction(1)}


def _add_pairs(first: _Pair, second: _Pair) -> _Pair:
    if first[1] == second[1]:
        return _add(first[0], second[0]), first[1]
    return (
        _add(_multiply(first[0], second[1]), _multiply(second[0], first[1])),
        _multiply(first[1], second[1]),
    )


def _multiply_pairs(first: _Pair, second: _Pair) -> _Pair:
    return _multiply(first[0], second[0]), _multiply(first[1], second[1])


def _inverse(pair: _Pair) -> _Pair:
    if not pair[0]:
        raise UnparsedError("division by zero")
    return pair[1], pair[0]


def _thaw(form: Form) -> _Pair:
    return dict(form.numerator), dict(form.denominator)


def _evaluate(node: Node) -> _Pair:
    match node:
        case Num(value):
            return _constant(value)
        case Sym(name):
            return _single(("var", name))
        case Const("pi"):
            return _single(PI)
        case Const("i"):
            return _single(IMAGINARY)
        case Const("e"):
            return _exponential(("e",), _freeze(*_constant(Fraction(1))))
        case Add(terms):
            total = _evaluate(terms[0])
            for term in terms[1:]:
                total = _add_pairs(total, _evaluate(term))
            return total
        case Mul(factors):
            product = _evaluate(factors[0])
            for factor in factors[1:]:
                product = _multiply_pairs(product, _evaluate(factor))
            return product
        case Pow(base, exponent):
            return _power(_evaluate(base), normal_form(exponent))
        case Root(radicand, degree):
            return _root(_evaluate(radicand), normal_form(degree))
        case Call(name, arguments):
            return _call(name, tuple(normal_form(argument) for argument in arguments))
        case Quantity(value, "degree"):
            return _multiply_pairs(_evaluate(value), _multiply_pairs(_single(PI), _constant(Fraction(1, 180))))
    raise UnparsedError(f"{type(node).__name__} is no scalar")


def _power(base: _Pair, exponent: Form) -> _Pair:
    rational = exponent.rational
    if rational is not None and rational.denominator == 1:
        return _integer_power(base, int(rational))
    form = _freeze(*base)
    constant = form.rational
    if constant is not None and constant == 0:
        raise UnparsedError("a power of zero")
    if rational is not None:
        return _rational_power(form, rational)
    if constant is not None and constant > 0:
        # p^(sum c_j m_j) is the product of p^(c_j m_j) for a positive base.
        product = _constant(Fraction(1))
        for prime, multiplicity in _factors(constant).items():
            power = _evaluate_scaled(exponent, Fraction(multiplicity))
            product = _multiply_pairs(product, _exponential(_prime(prime), power))
        return product
    if form.denominator == ((ONE, Fraction(1)),) and len(form.numerator) == 1:
        ((mono, coefficient),) = form.numerator
        if coefficient == 1 and len(mono) == 1:
            generator, power_of_base = mono[0]
            if generator[0] == "exp" and generator[1] == ("e",) and _has_plain_powers(generator):
                inner = generator[2]
                if isinstance(inner, Form):
                    return _single(("call", "power", form, exponent))
                assert isinstance(inner, tuple)
                base_exponent = Form(((inner, power_of_base),), ((ONE, Fraction(1)),))
                return _exponential(("e",), _product_form(base_exponent, exponent))
            if power_of_base == 1 and generator[0] == "var":
                return _exponential(generator, exponent)
    return _single(("call", "power", form, exponent))


def _evaluate_scaled(form: Form, scale: Fraction) -> Form:
    return _freeze({mono: value * scale for mono, value in form.numerator}, dict(form.denominator))


def _product_form(first: Form, second: Form) -> Form:
    return _freeze(*_multiply_pairs(_thaw(first), _thaw(second)))


def _integer_power(base: _Pair, power: int) -> _Pair:
    if power < 0:
        base, power = _inverse(base), -power
    return _polynomial_power(base[0], power), _polynomial_power(base[1], power)


def _polynomial_power(base: Polynomial, power: int) -> Polynomial:
    if len(base) == 1:
        ((mono, coefficient),) = base.items()
        size = max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length())
        if power > MAX_BITS or (abs(coefficient) != 1 and (size - 1) * power > MAX_BITS):
            raise LimitError("too_complex")
        powered, factor = _reduce({generator: exponent * power for generator, exponent in mono})
        return {powered: coefficient**power * factor}
    if not base:
        return {} if power else {ONE: Fraction(1)}
    if power > MAX_POWER:
        raise LimitError("too_complex")
    result: Polynomial = {ONE: Fraction(1)}
    while power:
        if power & 1:
            result = _multiply(result, base)
        power >>= 1
        if power:
            base = _multiply(base, base)
    return result


def _rational_power(form: Form, power: Fraction) -> _Pair:
    """base^(a/b), principal branch: c·P with c > 0 rational gives c^r · P^r."""
    if abs(power.numerator) > MAX_DECIMAL_EXPONENT or power.denominator > MAX_DECIMAL_EXPONENT:
        raise LimitError("too_complex")
    numerator = dict(form.numerator)
    content = _content(numerator)
    primitive = {mono: value / content for mono, value in numerator.items()}
    result = _positive_power(content, power)
    is_polynomial = form.denominator == ((ONE, Fraction(1)),)
    if is_polynomial and len(primitive) == 1:
        ((mono, coefficient),) = primitive.items()
        if coefficient == -1 and not mono:
            # (-1)^r = e^{i pi r}, of which the halves are powers of i.
            return _multiply_pairs(result, _single(("e^i pi",), power))
        if coefficient == 1:
            if all(generator[0] in ("prime", "composite") for generator, _ in mono):
                powered, factor = _reduce({generator: exponent * power for generator, exponent in mono})
                return _multiply_pairs(result, ({powered: factor}, {ONE: Fraction(1)}))
            if len(mono) == 1 and mono[0][1] == 1 and _has_plain_powers(mono[0][0]):
                return _multiply_pairs(result, _single(mono[0][0], power))
    rest = _freeze(primitive, dict(form.denominator))
    return _multiply_pairs(result, _single(("root", rest), power))


def _has_plain_powers(generator: Generator) -> bool:
    """Whether (g)^r is g^r: not for i, nor for powers of a variable or of an exponential with i, which change
    branch.
    """
    if generator[0] in ("i", "e^i pi"):
        return False
    return generator[0] != "exp" or (generator[1] == ("e",) and "('i',)" not in _text(generator))


def _root(radicand: _Pair, degree: Form) -> _Pair:
    order = degree.rational
    if order is None or order.denominator != 1 or not 0 < order <= MAX_DECIMAL_EXPONENT:
        return _power(radicand, _freeze(*_inverse(_thaw(degree))))
    form = _freeze(*radicand)
    if not form.numerator:
        return _constant(_ZERO)
    constant = form.rational
    if constant is not None and constant < 0 and order % 2:
        value = _rational_power(_evaluate_scaled(form, Fraction(-1)), 1 / order)
        return _multiply_pairs(_constant(Fraction(-1)), value)
    if order == 1:
        return radicand
    return _rational_power(form, 1 / order)


def _positive_power(value: Fraction, power: Fraction) -> _Pair:
    exponents: dict[Generator, Fraction] = {}
    for prime, multiplicity in _factors(value).items():
        exponents[_prime(prime)] = multiplicity * power
    mono, factor = _reduce(exponents)
    return {mono: factor}, {ONE: Fraction(1)}


def _prime(value: int) -> Generator:
    """The generator of a factor; above 997^2 it is not known to be prime, so its powers are not known to be
    independent.
    """
    return ("prime" if value < _SMALL_PRIMES[-1] ** 2 else "composite", value)


@lru_cache(maxsize=4096)
def _factors_of(value: int) -> tuple[tuple[int, int], ...]:
    found = []
    for prime in _SMALL_PRIMES:
        if prime * prime > value:
            break
        multiplicity = 0
        while value % prime == 0:
            value //= prime
            multiplicity += 1
        if multiplicity:
            found.append((prime, multiplicity))
    if value > 1:
        root = isqrt(value)
        if root * root == value and root > 1:
            # Below 10^6 what is left is prime; a square of an unfactored number is at least taken apart.
            found.extend((prime, 2 * multiplicity) for prime, multiplicity in _factors_of(root))
        else:
            found.append((value, 1))
    return tuple(found)


def _factors(value: Fraction) -> dict[int, int]:
    """Factorisation of a positive rational; a factor without primes below 1,000 is left whole (see ``_prime``)."""
    factors = dict(_factors_of(value.numerator))
    for prime, multiplicity in _factors_of(value.denominator):
        factors[prime] = factors.get(prime, 0) - multiplicity
    return factors


def _exponential(base: Generator, exponent: Form) -> _Pair:
    """base^exponent as the product of ``exp(base, m)^c`` over the terms ``c·m`` of a polynomial exponent."""
    if exponent.denominator != ((ONE, Fraction(1)),):
        return _single(("exp", base, exponent))
    exponents: dict[Generator, Fraction] = {}
    for mono, coefficient in exponent.numerator:
        if base[0] in ("prime", "composite") and mono == ONE:
            key: Generator = base
        elif base[0] == "var" and mono == ONE:
            key = base
        elif base == ("e",) and mono == ((IMAGINARY, Fraction(1)), (PI, Fraction(1))):
            key = ("e^i pi",)
        elif base == ("e",) and len(mono) == 1 and mono[0][0][0] == "ln" and mono[0][1] == 1:
            prime = mono[0][0][1]
            assert isinstance(prime, int)
            key = _prime(prime)
        else:
            key = ("exp", base, mono)
        exponents[key] = exponents.get(key, _ZERO) + coefficient
    mono, factor = _reduce(exponents)
    return {mono: factor}, {ONE: Fraction(1)}


# Functions

_ODD = frozenset(["sin", "tan", "cot", "csc", "arcsin", "arctan", "sinh", "tanh", "coth"])
_EVEN = frozenset(["cos", "sec", "cosh", "abs"])
_SINES = {Fraction(0): (0, 1), Fraction(1, 6): (1, 4), Fraction(1, 4): (1, 2), Fraction(1, 3): (3, 4), _HALF: (1, 1)}
"""x -> sin(pi x)^2 as a ratio, in the first quadrant."""


def _is_negative(form: Form) -> bool:
    return bool(form.numerator) and form.numerator[0][1] < 0


def _call(name: str, forms: tuple[Form, ...]) -> _Pair:
    first = forms[0]
    rational = first.rational
    if name == "factorial":
        if rational is not None and rational.denominator == 1 and 0 <= rational <= MAX_FACTORIAL:
            return _constant(Fraction(factorial(int(rational))))
        if rational is not None:
            raise LimitError("too_complex")
    elif name == "binom":
        below = forms[1].rational
        if rational is not None and below is not None:
            if not (rational.denominator == below.denominator == 1 and 0 <= below <= rational <= 2 * MAX_FACTORIAL):
                raise LimitError("too_complex")
            return _constant(Fraction(comb(int(rational), int(below))))
    elif name in ("floor", "ceiling") and rational is not None:
        whole = rational.numerator // rational.denominator
        return _constant(Fraction(whole if name == "floor" or rational.denominator == 1 else whole + 1))
    elif name == "abs" and rational is not None:
        return _constant(abs(rational))
    elif name in ("max", "min") and all(form.rational is not None for form in forms):
        values = [form.rational for form in forms if form.rational is not None]
        return _constant(max(values) if name == "max" else min(values))
    elif name in ("gcd", "lcm"):
        whole_numbers = [int(f.rational) for f in forms if f.rational is not None and f.rational.denominator == 1]
        if len(whole_numbers) == len(forms):
            return _constant(_check(Fraction(gcd(*whole_numbers) if name == "gcd" else lcm(*whole_numbers))))
    elif name == "exp" and len(forms) == 1:
        return _exponential(("e",), first)
    elif name in ("ln", "log", "lg"):
        return _logarithm(name, forms)
    elif name in ("sin", "cos", "tan", "sec", "csc", "cot") and len(forms) == 1:
        exact = _trigonometric(name, first)
        if exact is not None:
            return exact
    sign = 1
    if len(forms) == 1 and name in _ODD | _EVEN and _is_negative(first):
        forms = (_evaluate_scaled(first, Fraction(-1)),)
        sign = -1 if name in _ODD else 1
    return _multiply_pairs(_constant(Fraction(sign)), _single(("call", name, *forms)))


def _logarithm(name: str, forms: tuple[Form, ...]) -> _Pair:
    """``log`` without a base is the decimal one (MATH); ``ln`` and a stated base are what they say."""
    value = _natural_logarithm(forms[0])
    if name == "ln" and len(forms) == 1:
        return value
    base = _natural_logarithm(forms[1] if len(forms) > 1 else _freeze(*_constant(Fraction(10))))
    ratio = proportion(_freeze(*value), _freeze(*base))
    return _multiply_pairs(value, _inverse(base)) if ratio is None else _constant(ratio)


def _natural_logarithm(form: Form) -> _Pair:
    rational = form.rational
    if rational is not None and rational > 0:
        total = _constant(_ZERO)
        for prime, multiplicity in _factors(rational).items():
            total = _add_pairs(total, _multiply_pairs(_constant(Fraction(multiplicity)), _single(("ln", prime))))
        return total
    euler: Generator = ("exp", ("e",), ONE)
    if form.denominator == ((ONE, Fraction(1)),) and len(form.numerator) == 1 and form.numerator[0][1] == 1:
        mono = form.numerator[0][0]
        if len(mono) == 1 and mono[0][0] == euler:
            return _constant(mono[0][1])
    if rational is not None and rational == 0:
        raise UnparsedError("logarithm of zero")
    return _single(("call", "ln", form))


def _trigonometric(name: str, form: Form) -> _Pair | None:
    """Values at multiples of pi/6 and pi/4; None elsewhere."""
    if not form.numerator:
        turns: Fraction = _ZERO
    elif (
        form.denominator == ((ONE, Fraction(1)),)
        and len(form.numerator) == 1
        and form.numerator[0][0] == ((PI, Fraction(1)),)
    ):
        turns = form.numerator[0][1]
    else:
        return None
    sine, cosine = _sine(turns), _sine(turns + _HALF)
    if sine is None or cosine is None:
        return None
    match name:
        case "sin":
            return sine
        case "cos":
            return cosine
        case "tan":
            return _multiply_pairs(sine, _inverse(cosine))
        case "cot":
            return _multiply_pairs(cosine, _inverse(sine))
        case "sec":
            return _inverse(cosine)
    return _inverse(sine)


def _sine(turns: Fraction) -> _Pair | None:
    turns %= 2
    sign = 1 if turns < 1 else -1
    turns %= 1
    if turns > _HALF:
        turns = 1 - turns
    square = _SINES.get(turns)
    if square is None:
        return None
    if not square[0]:
        return _constant(_ZERO)
    return _multiply_pairs(_constant(Fraction(sign)), _positive_power(Fraction(*square), _HALF))
