r"""Answers that state several values at once, or none: no rule may pick the one that happens to be right.

Each list holds the shape, the gold, and whether it is right. The shapes are those a policy finds when the reward has
a hole: listing, hedging, bounding, denying, asking.
"""

from __future__ import annotations

import pytest

from agpo_bench.grading.blanks import BlanksGrader
from agpo_bench.grading.choice import ChoiceGrader
from agpo_bench.grading.expression import ExpressionGrader, extract_answer
from agpo_bench.grading.number import NumberGrader, extract_number
from agpo_bench.records import Reference

NUMBERS = [
    ("The answer is 18 or 19", "18", False),
    ("The answer is 17 or 18.", "18", False),
    ("The answer is either 17 or 18.", "18", False),
    ("#### 18 or 19", "18", False),
    ("#### 18 #### 19", "18", False),
    ("#### 17 #### 18", "18", True),
    ("The answer is between 17 and 18", "18", False),
    ("The answer is 18 to 20 dollars", "18", False),
    ("The answer is 12 and 13.", "12", False),
    ("The answer is 12:30", "12", False),
    ("The answer is 5:00 PM.", "5", True),
    ("The answer is 30 minutes or 0.5 hours", "30", True),
    ("The answer is 50% or 0.5", "50", True),
    ("The answer is 12, 3 of them red", "12", True),
    ("The answer is not 18", "18", False),
    ("The answer is 17, not 18", "17", True),
    ("\\boxed{\\pm 18}", "18", False),
    ("\\boxed{>18}", "18", False),
    ("\\boxed{\\neq 18}", "18", False),
    ("\\boxed{18x}", "18", False),
    ("\\boxed{(18, 18)}", "18", False),
    ("\\boxed{\\max(18, 18)}", "18", False),
    ("\\boxed{18 \\text{ more apples}}", "18", True),
    ("\\boxed{- 3}", "-3", True),
    ("\\boxed{- 3}", "3", False),
    ("答案是12吗？不，是13", "12", False),
    ("答案是12吗？不，是13", "13", True),
    ("答案不是12", "12", False),
    ("答案是 12 或者 13", "12", False),
    ("答案是12和13", "12", False),
    ("答案是12、13", "13", False),
    ("答案是12到13", "12", False),
    ("答：一共有12人。", "12", True),
]


@pytest.mark.parametrize(("response", "gold", "is_right"), NUMBERS)
@pytest.mark.parametrize("style", ["gsm8k", "cmath"])
def test_a_number_is_right_only_when_it_alone_is_stated(style: str, response: str, gold: str, is_right: bool) -> None:
    if style == "cmath" and "%" in response:
        return  # there a percent sign divides by 100
    verdict = NumberGrader(style=style).grade(response, Reference(gold=gold))  # type: ignore[arg-type]
    assert (verdict.score == 1) is is_right, verdict


def test_a_number_too_large_to_read_is_none_and_no_crash() -> None:
    assert extract_number("0E500") is None
    assert extract_number("\\boxed{1e999}") is None


EXPRESSIONS = [
    ("5\\text{ or }6", "5", False),
    ("5\\text{ or more}", "5", False),
    ("5\\text{ cm} + 6", "5", False),
    ("\\frac{1}{2}\\text{ or }2", "\\frac{1}{2}", False),
    ("5\\text{ or }6", "6,5", True),
    ("5\\text{ cm}", "5", True),
    ("5\\text{ cm}^2", "5", True),
    ("5\\text{ square feet}.", "5", True),
]


@pytest.mark.parametrize(("answer", "gold", "is_right"), EXPRESSIONS)
def test_only_a_unit_is_cut_off_behind_an_expression(answer: str, gold: str, is_right: bool) -> None:
    grader = ExpressionGrader()
    for first, second in ((answer, gold), (gold, answer)):
        assert (grader.grade(f"\\boxed{{{first}}}", Reference(gold=second)).score == 1) is is_right


def test_a_box_that_is_only_named_leaves_the_last_formula() -> None:
    assert extract_answer("I end with \\boxed as asked. We find $a=2$, hence the total is $23$.") == ("23", False)
    assert extract_answer("I end with \\boxed{ and stop. The total is $23$") is None
    assert extract_answer("Without the command the total is $23$.") is None
    assert extract_answer("\\boxed, then \\boxed{24}; $23$") == ("24", True)


CHOICES = [
    ("The answer is either B or C", "B", False),
    ("\\boxed{A}, \\boxed{B}", "B", False),
    ("\\boxed{A}, \\boxed{D}", "AD", True),
    ("\\boxed{A}和\\boxed{D}", "AD", True),
    ("\\boxed{C} is tempting, \\boxed{B} it is", "B", True),
    ("正确的是A和D", "AD", True),
    ("不正确的是A", "A", False),
    ("【答案】C", "C", True),
    ("I pick C. No wait, B is the answer.", "B", True),
    ("B is not the answer", "B", False),
]


@pytest.mark.parametrize(("response", "gold", "is_right"), CHOICES)
def test_a_pick_is_all_that_is_picked(response: str, gold: str, is_right: bool) -> None:
    verdict = ChoiceGrader().grade(response, Reference(gold=gold, options=("1", "2", "3", "4")))
    assert (verdict.score == 1) is is_right, verdict


BLANKS = [
    ("答案是 2或3", "2", False),
    ("答案是 5;10;5;10", "$5$;$10$", False),
    ("答案是 $\\frac12$ 或 $\\frac13$", "$\\frac{1}{2}$", False),
    ("答案是①、③", "①③", True),
    ("答案是①②③", "①③", False),
    ("答案是 2个。", "2", True),
    ("答案是 2万", "2", False),
]


@pytest.mark.parametrize(("response", "gold", "is_right"), BLANKS)
def test_a_blank_holds_one_answer(response: str, gold: str, is_right: bool) -> None:
    assert (BlanksGrader().grade(response, Reference(gold=gold)).score == 1) is is_right
