"""Sixty answers that break parsers, evaluators and clocks: each is graded 0 with a counted reason, quickly, in little
memory."""

from __future__ import annotations

import resource
import time

import pytest

from agpo_bench.grading.expression import ExpressionGrader, expressions_equal
from agpo_bench.records import Reference

TOWER = "9^{9^{9^{9^{9}}}}"
KNOWN_REASONS = {
    "wrong", "no_answer", "too_long", "too_deep", "too_complex", "unparsed", "timeout", "memory", "undecided",
}  # fmt: skip

HOSTILE = {
    "power tower": TOWER,
    "power tower of a variable": "x^{x^{x^{x^{x^{x}}}}}",
    "power of a power": "((9^{99})^{99})^{99}",
    "negative tower": "2^{-2^{-2^{99}}}",
    "caret chain": "9^9^9^9^9^9",
    "star chain": "9**9**9**9**9",
    "unicode tower": "9⁹⁹⁹⁹⁹⁹",
    "huge decimal exponent": "1e999999999",
    "huge negative exponent": "1e-999999999",
    "exponent beyond floats": "1e400",
    "ten thousand digits": "1" * 10_000,
    "seven thousand digits": "1" * 7_945,
    "thousand-digit power": "1" * 900 + "^{" + "9" * 900 + "}",
    "huge fraction": "\\frac{" + "9" * 900 + "}{" + "7" * 900 + "}^{999}",
    "many decimals": "0." + "3" * 1_900,
    "huge repeating decimal": "0.\\overline{" + "3" * 1_500 + "}",
    "braces a hundred thousand deep": "{" * 100_000 + "1" + "}" * 100_000,
    "braces a thousand deep": "{" * 900 + "1" + "}" * 900,
    "parentheses a thousand deep": "(" * 900 + "1" + ")" * 900,
    "brackets of sets": "\\{" * 400 + "1" + "\\}" * 400,
    "unclosed braces": "{" * 1_000,
    "unopened braces": "}" * 1_000,
    "fractions two hundred deep": "\\frac{1}{1+" * 200 + "1" + "}" * 200,
    "roots two hundred deep": "\\sqrt{1+" * 200 + "1" + "}" * 200,
    "bars": "|" * 999,
    "functions of functions": "\\sin" * 300 + "x",
    "minus signs": "-" * 1_000 + "1",
    "minus products": "1" + "*-1" * 600,
    "factorial tower": "9!!!!!!!!",
    "factorial of a million": "1000000!",
    "factorial of a factorial": "((100!)!)!",
    "factorial fraction": "\\frac{100000!}{99999!}",
    "binomial bomb": "\\binom{1000000}{500000}",
    "binomial of binomials": "\\binom{\\binom{100}{50}}{\\binom{90}{45}}",
    "negative binomial": "\\binom{-5}{3}",
    "sum to a high power": "(a+b+c+d+e+f+g+h)^{60}",
    "product of sums": "(a+b)(c+d)(e+f)(g+h)(j+k)(l+m)(n+o)(p+q)(r+s)(t+u)(v+w)(x+y)",
    "power of a power of a sum": "((a+b+c)^{50})^{50}",
    "nested exponentials": "e^{e^{e^{e^{e^{e}}}}}",
    "nested logarithms": "\\ln\\ln\\ln\\ln\\ln\\ln 2",
    "root of a big number": "\\sqrt{" + "7" * 600 + "}",
    "root of huge degree": "\\sqrt[999999999]{2}",
    "huge matrix": "\\begin{pmatrix}" + " \\\\ ".join(["1 & 2 & 3 & 4"] * 200) + "\\end{pmatrix}",
    "ragged matrix": "\\begin{pmatrix}1 & 2 \\\\ 3\\end{pmatrix}",
    "matrix without end": "\\begin{pmatrix}1 & 2",
    "long list": ",".join(map(str, range(400))),
    "long set": "\\{" + ",".join(["x"] * 300) + "\\}",
    "list of surds": ",".join(f"\\sqrt{{{n}+\\sqrt{{{n}}}}}" for n in range(2, 80)),
    "plus-minus chain": "\\pm 1" * 40,
    "nul bytes": "4\x003\x00",
    "only a nul": "\x00",
    "lone surrogates": "\ud800\udfff\ud83d",
    "surrogate in a number": "4\udc002",
    "right-to-left override": "\u202e24\u202c",
    "combining marks": "4" + "\u0301" * 1_500,
    "zero-width spaces": "\u200b".join("4321" * 300),
    "a megabyte of digits": "7" * 1_000_000,
    "a megabyte of blanks": " " * 1_000_000 + "7",
    "a megabyte of backslashes": "\\" * 1_000_001,
    "a megabyte of commands": "\\frac" * 200_000,
    "python": "__import__('os').system('touch /tmp/agpo_hostile')",
    "python in an identifier": "\\operatorname{__import__('os')._exit(1)}",
    "sympy text": "sympify('1')", "lambda": "lambda: 0", "format string": "{0.__class__.__mro__}%s%n",
    "zero to the zero over zero": "\\frac{0^0}{0}",
    "division by zero": "\\frac{1}{1-1}",
    "infinity minus infinity": "\\infty-\\infty",
    "infinite product": "0\\cdot\\infty",
    "not a number": "nan",
    "integral": "\\int_0^{10^{10}} x^{10^{10}} dx",
    "sum to infinity": "\\sum_{n=1}^{10^{100}} n",
    "derivative of a tower": "\\frac{d^9 x^{x^{x}}}{d x^9}",
}  # fmt: skip


def responses(answer: str) -> list[str]:
    return [f"\\boxed{{{answer}}}", answer, f"Final Answer: The final answer is ${answer}$. I hope it is correct."]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("style", ["math", "ocw"])
def test_a_hostile_answer_is_wrong_at_once_for_a_counted_reason(name, style):
    grader = ExpressionGrader(style)
    started = time.process_time()
    for gold in ("42", "\\sqrt{2+\\sqrt{3}}"):
        for response in responses(HOSTILE[name]):
            verdict = grader.grade(response, Reference(gold=gold))
            assert verdict.score == 0.0
            assert not verdict.is_error
            assert verdict.reason in KNOWN_REASONS
    assert time.process_time() - started < 4


def test_the_suite_holds_at_least_sixty_answers_and_the_parent_stays_small():
    assert len(HOSTILE) >= 60
    grader = ExpressionGrader()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for answer in HOSTILE.values():
        grader.grade(f"\\boxed{{{answer}}}", Reference(gold="42"))
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mib < 150


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_gold_is_never_a_reward_for_another_answer(name):
    for response in ("\\boxed{42}", "\\boxed{}", "\\boxed{x}"):
        assert ExpressionGrader().grade(response, Reference(gold=HOSTILE[name])).score == 0.0


def test_hostile_pairs_are_compared_without_order_mattering():
    answers = [answer for answer in HOSTILE.values() if len(answer) < 3_000]
    for index, first in enumerate(answers):
        for second in answers[index : index + 4]:
            assert expressions_equal(first, second) == expressions_equal(second, first)


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 150_000,
        "\\boxed " * 150_000,
        "final answer is " * 60_000,
        "final" + " " * 390_000,
        "I hope " * 55_000,
        "<think>" * 55_000,
        "</think>" * 49_000,
        "$" * 390_000,
        "\\boxed{1" + "{}" * 190_000,
        "\n\nQuestion" * 39_000,
        "} \\boxed{" * 40_000,
    ],
)
def test_extraction_is_linear_in_hostile_responses(text):
    started = time.process_time()
    ExpressionGrader().grade(text, Reference(gold="42"))
    assert time.process_time() - started < 3


def test_a_long_integer_does_not_raise():
    # NovaSky-AI/SkyThought#28: more than 4,300 digits raise ValueError in int() and str().
    assert not expressions_equal("12", "1" * 7_945)
    assert expressions_equal("1" * 7_945, "1" * 7_945)
