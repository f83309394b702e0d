from __future__ import annotations

import re
from typing import get_args

import pytest

from agpo_bench.data.benchmarks import load_task
from agpo_bench.data.embedded import EmbeddedItem, embedded_items
from agpo_bench.data.embedded.items import FAMILIES, Split
from agpo_bench.grading.answer import Grader
from agpo_bench.grading.graders import get_grader

SPLITS: tuple[Split, ...] = get_args(Split)


def _grader(task: str) -> Grader:
    spec = load_task(task).grader
    return get_grader(spec.kind, **spec.options)


def _question(item: EmbeddedItem) -> tuple[object, ...]:
    return (item.kind, *item.parameters)


def _without_names(text: str) -> str:
    """The wording with names and things, which do not change a problem, blotted out."""
    nouns = "Ann|Tom|Mia|Sam|Eva|Leo|pens|coins|cards|books|eggs|seeds|小明|小红|小华|小丽|小刚|小芳"
    return re.sub(f"{nouns}|个苹果|支铅笔|本书|朵花|张卡片|颗糖", "#", text)


@pytest.mark.parametrize("task", FAMILIES)
def test_no_question_is_in_two_splits_even_under_other_names(task: str) -> None:
    items = {split: embedded_items(task, split) for split in SPLITS}
    for read in (_question, lambda item: _without_names(item.reference.question)):
        seen = [{read(item) for item in items[split]} for split in SPLITS]
        assert not seen[0] & seen[1]
        assert not seen[0] & seen[2]
        assert not seen[1] & seen[2]


@pytest.mark.parametrize("task", FAMILIES)
def test_items_are_deterministic_distinct_and_enough_for_a_table(task: str) -> None:
    test = embedded_items(task, "test")
    assert len(test) >= 200
    assert embedded_items(task, "test", count=30) == test[:30]
    assert len(embedded_items(task, "train")) >= 2000
    assert len({item.prompt for item in test}) == len(test)
    assert len({item.kind for item in test}) >= 2


@pytest.mark.parametrize("task", [task for task in FAMILIES if task != "codecontests"])
def test_both_demonstrated_styles_are_right_by_the_official_rule(task: str) -> None:
    grader = _grader(task)
    items = [*embedded_items(task, "test"), *embedded_items(task, "train", count=300)]
    for style in ("direct", "worked"):
        verdicts = grader.grade_many([(item.solutions[style], item.reference) for item in items])
        failed = [(i.prompt, i.solutions[style], v) for i, v in zip(items, verdicts, strict=True) if v.score != 1.0]
        assert not failed[:3]


def test_demonstrated_programs_pass_their_tests_and_a_wrong_one_does_not() -> None:
    grader = _grader("codecontests")
    items = embedded_items("codecontests", "test", count=12)
    for style in ("direct", "worked"):
        verdicts = grader.grade_many([(item.solutions[style], item.reference) for item in items])
        assert [verdict.score for verdict in verdicts] == [1.0] * len(items)
    unchanged = "```python\nn=int(input())\nprint(n)\n```"
    assert sum(verdict.score for verdict in grader.grade_many([(unchanged, item.reference) for item in items])) < 2


@pytest.mark.parametrize("task", [task for task in FAMILIES if task != "codecontests"])
def test_another_items_answer_is_seldom_right(task: str) -> None:
    grader = _grader(task)
    items = embedded_items(task, "test")
    verdicts = grader.grade_many([(items[row - 1].direct, item.reference) for row, item in enumerate(items)])
    rate = sum(verdict.score for verdict in verdicts) / len(items)
    # Four options leave about one in four to luck; 0.38 is four standard errors above it at 200 items.
    assert rate < (0.38 if items[0].reference.options else 0.15)


@pytest.mark.parametrize("task", ["sat", "mmlu_stem", "gaokao_qa"])
def test_options_are_four_different_texts_and_no_letter_wins_by_guessing(task: str) -> None:
    items = embedded_items(task, "test")
    for item in items:
        assert len(set(item.reference.options)) == 4
        for letter, option in zip("ABCD", item.reference.options, strict=True):
            assert f"({letter}){option}" in item.prompt
    assert max(sum(item.reference.gold == letter for item in items) for letter in "ABCD") < 0.36 * len(items)


def test_a_range_holds_the_result_it_is_the_answer_for() -> None:
    for item in [item for item in embedded_items("sat", "test") if item.kind == "function"]:
        a, x, b = (int(value) for value in item.parameters)
        low, high = item.reference.options["ABCD".index(item.reference.gold)].split("-")
        assert int(low) <= a * x + b <= int(high)


def test_a_known_problem_of_each_answer_format_has_the_answer_worked_by_hand() -> None:
    bags = next(item for item in embedded_items("gsm8k", "test") if item.kind == "bags")
    a, b, c = bags.parameters
    assert f"has {a} bags of {b} " in bags.prompt
    assert bags.reference.gold == str(int(a) * int(b) + int(c))
    part = next(item for item in embedded_items("cmath", "test") if item.kind == "part")
    a, b, bottom = part.parameters
    assert part.reference.gold == f"{int(a) + int(b)}/{bottom}"
    mass = next(item for item in embedded_items("ocw", "test") if item.kind == "mass")
    a, b, c = mass.parameters
    assert float(mass.reference.gold) == pytest.approx(int(a) / 10 * int(b) + int(c))
    assert mass.direct.endswith(" kg. I hope it is correct.")


def test_bad_requests_are_one_sentence() -> None:
    with pytest.raises(ValueError, match="no embedded problems for task 'gsm9k'; there are gsm8k, math"):
        embedded_items("gsm9k", "test")
    with pytest.raises(ValueError, match="no split 'validation'; embedded problems have train, dev, test"):
        embedded_items("gsm8k", "validation")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count -1 is negative"):
        embedded_items("gsm8k", "test", count=-1)
    with pytest.raises(ValueError, match="ask for at most that many"):
        embedded_items("math", "test", count=10**6)
