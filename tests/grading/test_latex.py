"""The grammar, the exact normal form and the enclosure, each against values worked by hand or by sympy."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from agpo_bench.grading.latex import algebra
from agpo_bench.grading.latex.enclosure import agree, real_value
from agpo_bench.grading.latex.grammar import parse
from agpo_bench.grading.latex.limits import LimitError, UnparsedError
from agpo_bench.grading.latex.symbolic import build, is_proved_equal, to_wire
from agpo_bench.grading.latex.tree import (
    Based,
    Braced,
    Bracketed,
    Call,
    Listed,
    Matrix,
    Num,
    Quantity,
    Relation,
    Sym,
    Text,
)


def rational(text: str) -> Fraction | None:
    return algebra.normal_form(parse(text)).rational


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", "12"), (".5", "1/2"), ("1.50", "3/2"), ("1,234", "1234"), ("1{,}234.5", "2469/2"),
        (r"1,\!234,\!567", "1234567"),
        (r"2\,000", "2000"), ("1 000", "1000"), ("2e3", "2000"), ("1.5E-2", "3/200"), (r"\frac12", "1/2"),
        (r"\frac1{72}", "1/72"),
        (r"\frac{3}4", "3/4"), ("3/4/2", "3/8"), ("1/2x/x", "1/2"), ("-2^2", "-4"), ("(-2)^2", "4"), ("2^-1", "1/2"),
        ("2^10", "1024"), (r"2^{3^2}", "512"), (r"3\frac{1}{2}", "7/2"), ("-3 1/2", "-7/2"), (r"3\frac{5}{2}", "15/2"),
        ("50\\%", "1/2"), ("5!", "120"), (r"\sqrt{49}", "7"), (r"\sqrt4", "2"), (r"\sqrt[3]{-27}", "-3"),
        (r"4^{3/2}", "8"),
        (r"0.\overline{3}", "1/3"), (r"1.2\overline{5}", "113/90"), (r"|{-3}|", "3"), (r"||-2|-5|", "3"),
        (r"\lceil 2.1\rceil", "3"),
        (r"\binom{5}{2}", "10"), (r"\log_3 81", "4"), (r"\log 1000", "3"), (r"\ln e^2", "2"), (r"\sin 30^\circ", "1/2"),
        (r"\cos \frac{2\pi}{3}", "-1/2"), (r"\tan^2 60^{\circ}", "3"), (r"i^2", "-1"), (r"(1+i)(1-i)", "2"),
        (r"e^{i\pi}", "-1"),
        (r"e^{\ln 7}", "7"), (r"\gcd(12,18)", "6"), (r"\max(2,7)", "7"), (r"2\cdot 3 + 4\times 5 \div 2", "16"),
        ("sqrt(16)", "4"), (r"\left(\frac{1}{2}\right)^{-3}", "8"), (r"7-(-2)", "9"), ("2(3)(4)", "24"), ("x-x", "0"),
    ],
)  # fmt: skip
def test_constants_are_read_and_reckoned_exactly(text, value):
    assert rational(text) == Fraction(value)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("(1,2]", Bracketed("(", "]", (Num(Fraction(1)), Num(Fraction(2))))),
        (r"\{1\}", Braced((Num(Fraction(1)),))),
        ("1,2", Listed((Num(Fraction(1)), Num(Fraction(2))))),
        ("(1,234)", Bracketed("(", ")", (Num(Fraction(1)), Num(Fraction(234))))),
        ("1 or 2", Listed((Num(Fraction(1)), Num(Fraction(2))))),
        (r"1 \text{ and } 2", Listed((Num(Fraction(1)), Num(Fraction(2))))),
        ("12_{7}", Based("12", 7)),
        (r"x_{12}", Sym("x_{12}")),
        ("f(x)", Call("apply f", (Sym("x"),))),
        (r"5\text{ cm}^2", Quantity(Num(Fraction(5)), "cm^2")),
        ("5 inches", Quantity(Num(Fraction(5)), "inche")),
        (r"\text{Monday}", Text("monday")),
        (r"x \leq 3", Relation((Sym("x"), Num(Fraction(3))), ("<=",))),
        (r"\begin{bmatrix}1&2\end{bmatrix}", Matrix(((Num(Fraction(1)), Num(Fraction(2))),))),
        (r"\mathbf{v}", Sym("v")),
    ],
)
def test_trees_keep_what_counts(text, tree):
    assert parse(text) == tree


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\\frac{1}",
        "1+",
        "(1",
        "1)",
        "{1",
        "\\sqrt",
        "3 5",
        "x2",
        "\\unknown{x}",
        "\\begin{pmatrix}1",
        "1,,2",
        ",1",
        "=",
        "^2",
        "\\",
    ],
)
def test_what_is_no_mathematics_is_unparsed(text):
    with pytest.raises(UnparsedError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("1" * 2_001, "too_long"), ("(" * 41 + "1", "too_deep"), ("1+" * 500 + "1", "too_complex"),
    ("1e999", "too_complex"),
     ("1" * 1_001, "too_complex")],
)  # fmt: skip
def test_limits_are_decided_by_the_input(text, reason):
    with pytest.raises(LimitError) as caught:
        parse(text)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "text", ["1/0", "\\frac{x}{0}", "0^{-1}", "\\ln 0", "\\tan 90^\\circ", "0^{1/2}", "\\infty-\\infty"]
)
def test_what_has_no_value_has_no_normal_form(text):
    with pytest.raises(UnparsedError):
        algebra.normal_form(parse(text))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}"),  # differs for negative x and y
        (r"\sqrt{x^2}", "x"),
        (r"(x^2)^{1/2}", "x"),
        (r"(x^n)^{1/n}", "x"),
        (r"\ln x^2", r"2\ln x"),
        (r"(e^{2i\pi})^{1/2}", r"e^{i\pi}"),
        (r"\sqrt{-x}", r"i\sqrt{x}"),
        (r"|x|", "x"),
        (r"\sin^{-1} x", r"\frac{1}{\sin x}"),
    ],
)
def test_identities_that_hold_only_on_a_branch_are_not_used(first, second):
    assert not algebra.are_equal(algebra.normal_form(parse(first)), algebra.normal_form(parse(second)))


def random_expression(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.25:
        return rng.choice(["x", "y", "2", "3", "\\frac{2}{3}", "\\sqrt{2}", "\\sqrt{6}", "\\pi", "i", "5"])
    left, right = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    return rng.choice(
        [
            f"({left}+{right})",
            f"({left}-{right})",
            f"({left}\\cdot {right})",
            f"\\frac{{{left}}}{{{right}}}",
            f"({left})^{{2}}",
        ]
    )


@pytest.mark.slow
def test_the_normal_form_agrees_with_sympy_on_random_expressions():
    rng = random.Random(20240611)
    num_equal = 0
    for _ in range(300):
        first = random_expression(rng, 3)
        second = first if rng.random() < 0.5 else random_expression(rng, 2)
        second = f"\\frac{{({second})\\cdot (x+7)}}{{x+7}}" if rng.random() < 0.5 else second
        try:
            forms = [algebra.normal_form(parse(text)) for text in (first, second)]
        except (UnparsedError, LimitError):
            continue
        difference = sympy.simplify(build(to_wire(parse(first))) - build(to_wire(parse(second))))
        is_equal = algebra.are_equal(*forms)
        assert is_equal == (difference == 0), (first, second)
        assert not is_equal or agree(parse(first), parse(second)) or difference == 0
        num_equal += is_equal
    assert num_equal > 50


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_the_enclosure_never_parts_equal_values(seed):
    text = random_expression(random.Random(seed), 3)
    try:
        node = parse(text)
        form = algebra.normal_form(node)
    except (UnparsedError, LimitError):
        return
    shifted = parse(f"({text}+17)-17")
    assert algebra.are_equal(form, algebra.normal_form(shifted))
    from agpo_bench.grading.latex import enclosure

    for sample in range(3):
        try:
            (a, r), (b, s) = enclosure._ball(node, sample), enclosure._ball(shifted, sample)
        except enclosure._FAILURES:
            continue
        assert abs(a - b) <= 64 * (r + s) + 1e-290


def test_real_values_are_right_to_nine_digits():
    assert real_value(parse(r"\frac{\pi}{4}")) == pytest.approx(0.7853981633974483, rel=1e-12)
    assert real_value(parse(r"\arcsin\left(\frac{1}{2}\right)")) == pytest.approx(0.5235987755982989, rel=1e-12)
    assert real_value(parse(r"\sqrt{2}^{\sqrt{2}}")) == pytest.approx(1.632526919438153, rel=1e-12)
    assert real_value(parse("x")) is None
    assert real_value(parse(r"\sqrt{-1}")) is None


def test_sympy_objects_are_built_from_the_tree_alone():
    assert build(to_wire(parse(r"\frac{x+1}{2}"))) == (sympy.Symbol("x", real=True) + 1) / 2
    name = "__import__('os').system('echo')"
    assert build(["sym", name]).name == name
    assert is_proved_equal(to_wire(parse(r"\tan x \cos x")), to_wire(parse(r"\sin x")))
    assert not is_proved_equal(to_wire(parse(r"\ln(xy)")), to_wire(parse(r"\ln x + \ln y")))  # false for negative x, y
