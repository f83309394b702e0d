"""Every collected upstream bug that concerns reading answers and votes, with its collected right value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agpo_bench.evaluation.estimators import clustered_standard_error, pass_at_k
from agpo_bench.grading.choice import extract_choice
from agpo_bench.grading.extraction import last_boxed
from agpo_bench.grading.graders import get_grader
from agpo_bench.grading.number import extract_number, number_value
from agpo_bench.grading.quantity import find_quantities
from agpo_bench.grading.vote import majority_vote
from agpo_bench.records import Reference, Verdict

pytestmark = pytest.mark.shared

NUMBER_EQUALITY = {29, 30, 32, 42, 43, 44, 54, 58}
"""Equality cases whose answers are plain numbers: the number grader must agree with the expression grader on them."""


def rows(shared: Path) -> dict[int, dict[str, Any]]:
    lines = (shared / "cases" / "field_bugs.jsonl").read_text().splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def same_number(found: str | None, expected: str) -> bool:
    return found is not None and number_value(found) == number_value(expected)


def check_extract_number(given: dict[str, Any], expected: list[str]) -> None:
    texts = given.get("cases") or [given["head"] + given["tail_unit"] * given["tail_repeat"]]
    assert all(same_number(extract_number(text), right) for text, right in zip(texts, expected, strict=True))


def check_truncated(given: dict[str, Any], expected: str) -> None:
    assert same_number(extract_number(given["response"]), expected)


def check_extract_numbers(given: dict[str, Any], expected: list[list[str]]) -> None:
    for text, right in zip(given["responses"], expected, strict=True):
        # the graders look at Chinese numerals (两个) only where there are no digits
        found = [quantity.value for quantity in find_quantities(text) if not quantity.is_numeral]
        assert found == [number_value(r)[0] for r in right]  # type: ignore[index]


def check_extract_boxed(given: dict[str, Any], expected: str | None) -> None:
    assert last_boxed(given["response"]) == expected


def check_extract_choice(given: dict[str, Any], expected: list[str]) -> None:
    assert [extract_choice(text, letters=given["letters"]) for text in given["responses"]] == expected


def check_grade_choice(given: dict[str, Any], expected: list[bool]) -> None:
    reference = Reference(gold=given["gold"], options=("",) * 4)
    assert [get_grader("choice").grade(text, reference).score == 1 for text in given["preds"]] == expected


def check_equal(given: dict[str, Any], expected: list[bool]) -> None:
    for case, right in zip(given["cases"], expected, strict=True):
        first = case["gold"]
        second = case.get("pred", "1" * 7945)
        for style in ("gsm8k", "cmath"):
            grader = get_grader("number", style=style)
            for gold, answer in ((first, second), (second, first)):
                verdict = grader.grade(f"\\boxed{{{answer}}}", Reference(gold=gold))
                assert (verdict.score == 1) == right, (gold, answer, verdict)


def check_mixed(given: dict[str, Any], expected: list[Any]) -> None:
    for case, right in zip(given["cases"], expected, strict=True):
        if case["op"] == "equal":
            check_equal({"cases": [case]}, [right])
        else:
            assert extract_choice(case["response"], letters=case["letters"]) == right


def check_vote(given: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    for case, right in zip(given["cases"], expected, strict=True):
        kind = "choice" if case["gold"].isalpha() else "expression"
        grader = get_grader(kind)
        reference = Reference(gold=case["gold"])
        verdicts = [
            Verdict(score=0.0, answer=None, reason="no_answer")
            if answer in (None, "[invalid]")
            else grader.grade(f"\\boxed{{{answer}}}", reference)
            for answer in case["answers"]
        ]
        vote = majority_vote(verdicts, grader.are_equivalent, num_draws=len(verdicts))
        assert (vote.value == 1) == right["correct"]
        assert vote.winner_votes == right.get("winner_votes", vote.winner_votes)
        assert "winner" not in right or vote.winner is None


def check_short_draw(given: dict[str, Any], expected: dict[str, Any]) -> None:
    grader = get_grader("number")
    verdicts = [grader.grade(answer, Reference(gold=given["gold"])) for answer in given["answers"]]
    vote = majority_vote(verdicts, grader.are_equivalent, num_draws=given["k"])
    assert vote.value is expected["value"]
    assert vote.is_short


def check_pass_at_k(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert pass_at_k(given["n"], given["c"], given["k"]) in expected["acceptable"]


def check_standard_error(given: dict[str, Any], expected: dict[str, float]) -> None:
    right = given["right_questions"]
    scores = [[1.0] * given["repeats"]] * right + [[0.0] * given["repeats"]] * (given["n_questions"] - right)
    assert clustered_standard_error(scores) == pytest.approx(expected["se"], abs=5e-5)


def check_batch(given: dict[str, Any], expected: dict[str, list[int]]) -> None:
    pairs = [(text, Reference(gold=gold)) for text, gold in zip(given["responses"], given["golds"], strict=True)]
    for kind in ("number", "expression", "blanks"):
        assert [verdict.score for verdict in get_grader(kind).grade_many(pairs)] == expected["rewards"]


CHECKS: dict[int, Callable[[Any, Any], None]] = {
    **dict.fromkeys((1, 2, 4, 5, 7, 47), check_extract_number),
    16: check_truncated,
    46: check_extract_numbers,
    **dict.fromkeys((8, 9, 14), check_extract_boxed),
    **dict.fromkeys((17, 18, 20, 21, 24), check_extract_choice),
    23: check_grade_choice,
    **dict.fromkeys(NUMBER_EQUALITY - {43}, check_equal),
    43: check_mixed,
    **dict.fromkeys((49, 50), check_vote),
    52: check_short_draw,
    53: check_pass_at_k,
    88: check_standard_error,
    60: check_batch,
}


@pytest.mark.parametrize("number", sorted(CHECKS))
def test_a_collected_bug_does_not_occur(shared: Path, number: int) -> None:
    row = rows(shared)[number]
    CHECKS[number](row["input"], row["expected"])
