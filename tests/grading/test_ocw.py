"""OCW: typing by the gold, numbers with units and a relative tolerance, equations up to a factor. Rules in
PROTOCOLS."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agpo_bench.grading.expression import ExpressionGrader
from agpo_bench.grading.ocw import answer_type, compare_numbers, without_unit
from agpo_bench.records import Reference

RTOL = Fraction(1, 100_000)


def score(gold: str, answer: str) -> float:
    response = f"Final answer: The final answer is {answer}. I hope it is correct."
    verdict = ExpressionGrader("ocw").grade(response, Reference(gold=gold))
    assert ExpressionGrader("ocw").grade(f"so \\boxed{{{answer}}}", Reference(gold=gold)).score == verdict.score
    return verdict.score


@pytest.mark.parametrize(
    ("gold", "kind"),
    [("3.5", "numeric"), ("-7", "numeric"), ("0", "numeric"), ("2.1e-26", "numeric"), ("y=2x", "equation"),
     ("\\frac{1}{2}", "expression"), ("-1./3", "expression"), ("m", "expression")],
)  # fmt: skip
def test_the_gold_gives_the_type(gold, kind):
    assert answer_type(gold) == kind


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("2.4", "2.4"), ("2.4", "$2.40$"), ("2.4", "12/5"), ("2.4", r"\frac{12}{5}"), ("2.4", "2.4 cm"),
        ("2.4", r"2.4 \mathrm{~cm}"), ("2.4", r"2.4 \mathrm{~m} / \mathrm{s}^{2}"), ("2.4", "2.4 m/s^2"),
        ("2.4", r"2.4 \text{ erg/s}"), ("2.4", "2.4 eV"), ("2.4", r"2.4 \mu m"), ("2.4", r"x = 2.4 \text{ kg}"),
        ("2.4", r"\approx 2.4"), ("2.4", r"2.4 \mathrm{~g} \cdot \mathrm{mol}^{-1}"), ("2.4", "2.4 years"),
        ("3.6e33", r"3.6 \times 10^{33}"), ("3.6e33", "3.6e33"), ("3.6e33", "3.6 x 10^33"), ("3.6e33", "3.6*10**33"),
        ("3.6e33", r"3.6 \cdot 10^{33} \mathrm{~erg}"), ("3.6e33", "3.60002e33"), ("36000", "36,000"),
        ("5e-7", r"5 \times 10^{-7} \text{ m}"), ("-4", "-4"), ("0", "0"), ("0", "0.0"), ("-0.125", "-0.125"),
        ("30", "30.0002"), ("0.7853981", r"\frac{\pi}{4}"), ("1.4142136", r"\sqrt{2}"), ("7", r"7^{\circ}"),
    ],
)  # fmt: skip
def test_a_number_is_right_with_units_in_any_notation(gold, answer):
    assert score(gold, answer) == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("2.4", "2.41"), ("30", "30.001"), ("30", "thirty"), ("30", "30%"), ("-4", "4"), ("0", "1e-12"),
        ("7.1e-13", "2.4e-13"), ("2.4", "2.4 + 1"), ("2.4", "2.4 x"), ("2.4", "2.4, 3.1"), ("3.6e33", "3.6"),
        ("30", "3000"), ("30", "0.3"), ("2.4", "2.4abc"), ("0", "y'+y=0"), ("3", "x+y=3"),
    ],
)  # fmt: skip
def test_a_number_is_wrong_outside_the_tolerance(gold, answer):
    # mitdbg/Kramabench#33: an absolute tolerance makes all small numbers equal.
    assert score(gold, answer) == 0.0


def test_the_wide_tolerance_is_a_second_column():
    verdict = ExpressionGrader("ocw").grade("\\boxed{1.575}", Reference(gold="1.57"))
    assert verdict.score == 0.0
    assert verdict.alternatives["ocw_rtol_1e-2"] == 1.0
    assert ExpressionGrader("ocw", ocw_rtol=1e-2).grade("\\boxed{1.575}", Reference(gold="1.57")).score == 1.0


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        (r"m \frac{d v}{d t}+k v=F", r"m \frac{dv}{dt}+kv=F", 1.0),
        (r"m \frac{d v}{d t}+k v=F", r"F=m \frac{d v}{d t}+k v", 1.0),
        (r"m \frac{d v}{d t}+k v=F", r"\frac{d v}{d t}+\frac{k}{m} v=F", 0.0),
        (r"m \frac{d v}{d t}+k v=F", r"m \frac{v}{t}+k v=F", 0.0),
        (r"y^{\prime}-a y+b x(t)=0", r"b x(t) + y' - a y = 0", 1.0),
        (r"y^{\prime}-a y+b x(t)=0", r"2y'-2ay+2bx(t)=0", 1.0),
        ("P=80-2Q", "2Q+P=80", 1.0),
        ("P=80-2Q", "80-2Q", 0.0),
        ("AC=BD", "BD=AC", 1.0),
        ("AC=BD", "AC=BE", 0.0),
    ],
)
def test_equations_are_equal_up_to_a_factor_and_the_sides(gold, answer, expected):
    assert score(gold, answer) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        (r"\frac{e^{-a t}-e^{-b t}}{b-a}", r"\frac{1}{b-a}\left(e^{-a t}-e^{-b t}\right)", 1.0),
        (r"\frac{e^{-a t}-e^{-b t}}{b-a}", r"\frac{e^{-bt}-e^{-at}}{a-b}", 1.0),
        (r"\frac{e^{-a t}-e^{-b t}}{b-a}", r"\frac{e^{-at}+e^{-bt}}{b-a}", 0.0),
        ("-1./3", r"-\frac{1}{3}", 1.0),
        ("np.arccos(2/7)", r"\arccos\left(\frac{2}{7}\right)", 1.0),
        (r"c_{1} e^{t}+c_{2} e^{-t}", r"c_2 e^{-t} + c_1 e^t", 1.0),
        (r"c_{1} e^{t}+c_{2} e^{-t}", r"c_1 e^{-t} + c_2 e^t", 0.0),
        (r"2 \pi / \omega", r"\frac{2\pi}{\omega}", 1.0),
        ("V(0) e^{-t}", "0", 0.0),
        ("6.5 Z", "6.5Z", 1.0),
        ("6.5 Z", "6.5", 0.0),
    ],
)
def test_expressions_are_equal_as_mathematics(gold, answer, expected):
    assert score(gold, answer) == expected


@pytest.mark.parametrize(
    ("text", "rest"),
    [("3.2 m/s^2", "3.2"), (r"40 \mathrm{~W}", "40"), (r"2 \mu m", "2"), ("3x", "3x"), ("3.2", "3.2"), ("x+1", "x+1")],
)
def test_units_are_cut_from_numbers_only(text, rest):
    assert without_unit(text) == rest


@given(st.floats(-1e30, 1e30, allow_nan=False), st.floats(-2e-5, 2e-5))
def test_the_tolerance_is_symmetric(value, shift):
    first, second = repr(value), repr(value * (1 + shift))
    assert compare_numbers(first, second, rtol=RTOL) == compare_numbers(second, first, rtol=RTOL)
    assert compare_numbers(first, first, rtol=RTOL).is_equal


@pytest.mark.shared
def test_every_ocw_gold_is_accepted_in_all_forms_and_no_other_gold_is(shared):
    golds = [json.loads(line)["answer"] for line in (shared / "data/ocw/test.jsonl").read_text().splitlines()]
    assert len(golds) == 272
    grader = ExpressionGrader("ocw")
    types = {"numeric": 0, "equation": 0, "expression": 0}
    for gold in golds:
        types[answer_type(gold)] += 1
        for response in (
            gold,
            f"${gold}$",
            f"so $\\boxed{{{gold}}}$.",
            f"Final answer: The final answer is {gold}. I hope it is correct.",
        ):
            assert grader.grade(response, Reference(gold=gold)).score == 1.0, response
    assert types == {"numeric": 188, "equation": 12, "expression": 72}  # counts of PROTOCOLS section 3
    different = sorted(set(golds))
    for index, gold in enumerate(different):
        for other in different[index + 1 :: 7]:
            verdicts = [
                grader.grade(f"\\boxed{{{a}}}", Reference(gold=b)).score for a, b in ((gold, other), (other, gold))
            ]
            is_same = answer_type(gold) == answer_type(other) == "numeric" and float(gold) == float(other)
            assert verdicts == [float(is_same)] * 2, (gold, other)
