"""Gaokao cloze: all blanks, in order, by the same normaliser on both sides."""

from __future__ import annotations

import pytest

from agpo_bench.grading.blanks import extract_blanks, split_blanks
from agpo_bench.grading.graders import get_grader
from agpo_bench.records import Reference

GRADER = get_grader("blanks")


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("答案是 7。", "7", 1),
        ("故答案为：7", "7", 1),
        ("故填7.", "$7$", 1),
        (r"\boxed{7}", "7", 1),
        ("7", "$7$", 1),
        ("答案是 700", "7", 0),
        ("答案是 63", "-63", 0),
        ("答案是 -63", "$-63$", 1),
        ("答案是 3;8", "$3$;$8$", 1),
        ("答案是 3, 8", "$3$;$8$", 1),
        ("答案是 3，8", "$3$;$8$", 1),
        ("答案是 3；8。", "$3$;$8$", 1),
        ("答案是 $3$ 和 $8$", "$3$;$8$", 1),
        ("答案是 3、8", "$3$;$8$", 1),
        (r"\boxed{3;8}", "$3$;$8$", 1),
        (r"\boxed{3}；\boxed{8}", "$3$;$8$", 1),
        (r"$\boxed{3}$, $\boxed{8}$", "$3$;$8$", 1),
        (r"不是\boxed{3}而是\boxed{8}", "8", 1),
        ("答案是 8;3", "$3$;$8$", 0),
        ("答案是 3", "$3$;$8$", 0),
        ("答案是 3;8;9", "$3$;$8$", 0),
        ("答案是 3;9", "$3$;$8$", 0),
        ("答案是 0", "$3x-y+1=0$", 0),
        (r"答案是 $(0,1)$", "$(0,1]$", 0),
        (r"答案是 (0,1]", "$(0,1]$", 1),
        (r"答案是 $\left(0,1\right]$", "$(0,1]$", 1),
        (r"答案是 $60$", r"$60^{\circ}$", 1),
        ("答案是 ①③", r"$\textcircled{1}\textcircled{3}$", 1),
        ("答案是 13", r"$\textcircled{1}\textcircled{3}$", 0),
        ("答案是 $a_{2}=3$，$b=8$", "3;8", 1),
        ("答案是 1,450", "1450", 1),
        ("先得 3。\n答案是：\n$$\n8\n$$", "8", 1),
        ("答案是3吗？不对。\n答案是 8", "8", 1),
        ("答案是 \\boxed{8}。", "8", 1),
    ],
)
def test_cloze_answers(response: str, gold: str, right: int) -> None:
    assert GRADER.grade(response, Reference(gold=gold)).score == right


def test_the_fraction_of_right_blanks_is_logged_and_not_the_score() -> None:
    verdict = GRADER.grade("答案是 3;9", Reference(gold="3;8"))
    assert (verdict.score, verdict.alternatives) == (0.0, {"blanks_fraction": 0.5})


def test_a_list_is_split_outside_brackets_only() -> None:
    assert split_blanks("(0,1),[2,3]") == ["(0,1)", "[2,3]"]
    assert split_blanks("a,b;c,d") == ["a,b", "c,d"]
    assert split_blanks(r"\frac{1}{2} 和 \sqrt{3}") == [r"\frac{1}{2}", r"\sqrt{3}"]


def test_a_response_that_states_nothing_has_no_answer() -> None:
    assert extract_blanks("我不知道。\n也许吧。") is None
    assert extract_blanks("") is None


def test_votes_join_spellings_of_one_list() -> None:
    assert GRADER.are_equivalent(r"\frac{1}{2};3", "1/2;3")
    assert not GRADER.are_equivalent("1/2;3", "3;1/2")


def test_an_empty_gold_is_an_error_of_the_data() -> None:
    assert GRADER.grade("答案是 3", Reference(gold=" $ ")).is_error
