"""What the published files hold of one another: counts measured elsewhere, and what goes beyond them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agpo_bench.cli import app
from agpo_bench.data.benchmarks import open_source, task_names
from agpo_bench.data.contamination.batch import Text
from agpo_bench.data.contamination.check import Report, check_texts
from agpo_bench.data.contamination.gather import evaluation_texts, split_texts
from agpo_bench.data.contamination.survey import Survey, survey

pytestmark = [pytest.mark.shared, pytest.mark.slow]


@pytest.fixture(scope="module")
def tests(shared: Path) -> list[Text]:
    return evaluation_texts(open_source(shared / "data"), task_names())[0]


@pytest.fixture(scope="module")
def leaks(shared: Path, tests: list[Text]) -> Survey:
    return survey(open_source(shared / "data"), tests)


@pytest.fixture(scope="module")
def math(shared: Path, tests: list[Text]) -> Report:
    return check_texts(split_texts(open_source(shared / "data"), "math", "train"), tests)


def test_equal_texts_of_the_benchmarks_own_splits(leaks: Survey) -> None:
    """PROTOCOLS.md section 0: equal up to white space, MATH 2, CMATH 3, GSM8K 0."""
    verbatim = {name: report.counts["verbatim"].training_texts for name, report in leaks.splits.items()}
    assert verbatim["math/train"] == 2
    assert verbatim["cmath/train"] == 3
    assert verbatim["gsm8k/train"] == 0


def test_items_repeated_within_a_test_set(leaks: Survey) -> None:
    """PROTOCOLS.md section 0: MMLU 13, QA 4, cloze 2, CMATH 1, MATH 0."""
    repeats = {task: sum(one.stage == "verbatim" for one in found) for task, found in leaks.repeated.items()}
    assert {task: count for task, count in repeats.items() if count} == {
        "mmlu_stem": 13,
        "gaokao_qa": 4,
        "gaokao_cloze": 2,
        "cmath": 1,
    }


def test_the_few_shot_prompt_of_ocw_shows_test_items(leaks: Survey) -> None:
    """PROTOCOLS.md section 0 names rows 103 and 124; row 148 is in the prompt too, with other blanks in a formula."""
    shown = {name: sorted(int(one.eval_id.split("/")[2]) for one in found) for name, found in leaks.few_shot.items()}
    assert shown["ocw/deepseek"] == [103, 124, 148]
    assert all(not rows for name, rows in shown.items() if name != "ocw/deepseek")


def test_less_than_one_in_a_hundred_of_math_train_is_a_near_copy(math: Report) -> None:
    """A 13-gram filter would take 742 of the 7,500 (words) or 2,460 (words and punctuation)."""
    assert 20 <= math.counts["near"].training_texts < 75


def test_math_train_is_asked_again_by_mmlu(math: Report) -> None:
    equal = [one for one in math.findings if one.stage == "verbatim" and one.eval_id.startswith("mmlu_stem/")]
    assert len(equal) == 68


def test_every_removal_is_explained(math: Report) -> None:
    for found in math.findings:
        if found.stage == "near":
            assert 0.8 <= found.score <= 1.0
            assert found.spans
            assert all(span.words for span in found.spans)


def test_the_command_prints_the_counts(shared: Path, tmp_path: Path) -> None:
    arguments = ["--train", str(shared / "data" / "math"), "--eval", "all", "--data", str(shared / "data")]
    report = tmp_path / "report.json"
    result = CliRunner().invoke(app, ["data", "check", *arguments, "--report", str(report)])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["math/train", "2", "3"] in [line[:1] + line[2:4] for line in lines]
    assert ["cmath/train", "600", "3"] in [line[:3] for line in lines]
    assert ["gaokao_qa", "4"] in [line[:2] for line in lines]
    assert any(line == ["ocw/deepseek:", "103,", "124,", "148"] for line in lines)
    assert json.loads(report.read_text(encoding="utf-8"))["num_training"] == 7500
