"""Multiple choice: the last explicit statement, sets of letters, and what is no statement."""

from __future__ import annotations

import pytest

from agpo_bench.grading.choice import AMBIGUOUS, extract_choice
from agpo_bench.grading.graders import get_grader
from agpo_bench.records import Reference


@pytest.mark.parametrize(
    ("response", "picked"),
    [
        ("The final answer is (B). I hope it is correct.", "B"),
        ("The answer is therefore B", "B"),
        ("B", "B"),
        ("$B$", "B"),
        ("**B**", "B"),
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{B. 12}", "B"),
        (r"\boxed{12 \text{ (B)}}", "B"),
        (r"The answer is \(B\).", "B"),
        ("I choose option B.", "B"),
        ("Option B is correct.", "B"),
        ("the answer is (b)", "B"),
        ("故选B", "B"),
        ("故选：Ｂ。", "B"),
        ("答案是 B", "B"),
        ("综上，选项B是正确的。", "B"),
        ("因此应选择B", "B"),
        ("不选A，选B", "B"),
        ("选项A错误，选项B正确", "B"),
        ("The answer is (A)... no, the answer is (B).", "B"),
        ("Both B and C look good. The answer is (B).", "B"),
        ("Some work.\n\nB", "B"),
    ],
)
def test_explicit_statements_are_read(response: str, picked: str) -> None:
    assert extract_choice(response) == picked


@pytest.mark.parametrize(
    "response",
    [
        "A is wrong, and so is C.",
        "the final answer is a number",
        "Answer: A lever moves it",
        r"\boxed{14}",
        "CO2",
        "",
        "选择题第3题",
        "the answer is b",
        r"\boxed{\Delta E}",
        "Triangle ABC has area 4.",
    ],
)
def test_letters_that_are_no_statement_are_not_read(response: str) -> None:
    assert extract_choice(response) is None


@pytest.mark.parametrize(
    ("response", "picked"),
    [
        # EleutherAI/lm-evaluation-harness#4188; jundot/omlx#3668: the words "a" and "I"
        ("The answer is B because a magnet pulls.", "B"),
        ("The answer is E because I measured it.", "E"),
        # groq/openbench#348; openai/simple-evals#33: the first letter of the next word
        ("Answer can be read off.\n\nAnswer: C", "C"),
        ("Antwort:\n\nAntwort: D", "D"),
        ("The final answer is above 9, which is choice (D).", "D"),
        # UKGovernmentBEIS/inspect_ai#5055; NVIDIA-NeMo/Gym#1844; NVIDIA-NeMo/Skills#1526: wrappers, letters in formulas
        ("ANSWER: **C**", "C"),
        ("ANSWER: $C$", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"\boxed{C: the force halves}", "C"),
        (r"So \boxed{\langle B\rangle \gg \Delta C}." + "\n**Answer: E**", "E"),
        # antirez/ds4#321: a rejected option beside the pick
        ("Answer: it cannot be A, so C", "C"),
        ("Answer: C, not A", "C"),
        ("The answer is C and A is wrong", "C"),
        # open-compass/opencompass#2600: two Chinese patterns fused
        ("A、C都没有考虑摩擦，只有选项D是对的", "D"),
        # deepseek-ai/DeepSeek-Math answer_extraction.py: the letter whose first place is latest
        ("答案是 B，因为 A 错", "B"),
    ],
)
def test_known_misreadings_do_not_happen(response: str, picked: str) -> None:
    assert extract_choice(response, letters="ABCDEFGHIJ") == picked


@pytest.mark.parametrize(
    "response",
    [
        "B、C",
        "C、B",
        "(B)(C)",
        "BC",
        "B C",
        "答案是 B、C",
        r"\boxed{B, C}",
        r"\boxed{\text{B and C}}",
        "The answer is B and C.",
    ],
)
def test_several_letters_are_a_set(response: str) -> None:
    # ruixiangcui/AGIEval#20
    assert extract_choice(response) == "BC"


@pytest.mark.parametrize(("response", "right"), [("BC", 1), ("CB", 1), ("B", 0), ("C", 0), ("BCD", 0), ("B或C", 0)])
def test_partial_and_extra_picks_are_wrong(response: str, right: int) -> None:
    grader = get_grader("choice")
    assert grader.grade(f"答案是 {response}", Reference(gold="B C", options=("",) * 4)).score == right


def test_hedging_picks_nothing() -> None:
    assert extract_choice("The answer is A or B.") == AMBIGUOUS
    verdict = get_grader("choice").grade("The answer is A or B.", Reference(gold="A"))
    assert (verdict.score, verdict.answer, verdict.reason) == (0.0, None, "ambiguous")


def test_a_letter_that_is_not_offered_is_no_answer() -> None:
    grader = get_grader("choice")
    assert grader.grade("Answer: E", Reference(gold="D", options=("",) * 4)).reason == "no_answer"
    assert grader.grade("Answer: E", Reference(gold="E", options=("",) * 5)).score == 1


def test_the_single_answer_score_exists_only_where_the_gold_is_one_letter() -> None:
    grader = get_grader("choice", report_single=True)
    assert grader.grade("Answer: B", Reference(gold="B")).alternatives == {"agieval_single": 1.0}
    assert grader.grade("Answer: BC", Reference(gold="BC")).alternatives == {}


@pytest.mark.parametrize("gold", ["", "4", "Peter and Ann", "b"])
def test_an_unreadable_gold_is_an_error(gold: str) -> None:
    assert get_grader("choice").grade("Answer: B", Reference(gold=gold)).is_error


def test_equivalence_is_of_sets() -> None:
    grader = get_grader("choice")
    assert grader.are_equivalent("AB", "BA")
    assert not grader.are_equivalent("A", "AB")
    assert not grader.are_equivalent("", "x")
