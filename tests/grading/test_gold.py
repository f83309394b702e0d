"""The evidence on real files: golds, solutions, crossed golds, verdicts of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from agpo_bench.grading import evidence

pytestmark = pytest.mark.shared

CROSS_PAIRS = 4000
REFERENCES = {  # counted by running the references on the same golds
    "gsm8k/deepseek": (1305, 1319),
    "gsm8k/lm_eval": (1319, 1319),
    "math/lm_eval": (4737, 5000),
    "ocw/deepseek": (264, 272),
    "ocw/lm_eval": (252, 272),
    "cmath/deepseek": (1067, 1098),
    "gaokao_cloze/deepseek": (97, 118),
    "gaokao_qa/deepseek": (344, 351),
}


@pytest.mark.parametrize("task", ["gsm8k", "ocw", "sat", "mmlu_stem", "cmath", "gaokao_cloze", "gaokao_qa"])
def test_every_gold_is_accepted_in_every_form(shared: Path, task: str) -> None:
    records = evidence.gold_acceptance(shared / "data", tasks=[task])
    assert len(records) >= len(evidence.FORMS)
    assert [other for record in records for other in record.others] == []
    assert all(record.without_gold == () for record in records)


def test_every_gsm8k_solution_is_accepted(shared: Path) -> None:
    records = evidence.solution_acceptance(shared / "data", tasks=["gsm8k"])
    assert sum(record.accepted for record in records) == 1319 + 7473


@pytest.mark.slow
def test_every_math_gold_and_solution_is_accepted(shared: Path) -> None:
    records = evidence.gold_acceptance(shared / "data", tasks=["math"])
    records += evidence.solution_acceptance(shared / "data", tasks=["math"])
    assert [other for record in records for other in record.others] == []
    assert all(record.without_gold == () for record in records)


@pytest.mark.slow
def test_the_compatible_modes_accept_as_many_golds_as_the_references(shared: Path) -> None:
    records = evidence.reference_acceptance(shared / "data")
    assert {record.name: (record.accepted, record.total) for record in records} == REFERENCES


@pytest.mark.parametrize("task", ["gsm8k", "sat", "mmlu_stem", "cmath", "gaokao_cloze", "gaokao_qa"])
def test_a_different_gold_is_wrong_and_the_order_of_the_two_does_not_matter(shared: Path, task: str) -> None:
    (record,) = evidence.cross_rejection(shared / "data", num_pairs=CROSS_PAIRS, seed=7, tasks=[task])
    assert (record.pairs, record.symmetric) == (CROSS_PAIRS, CROSS_PAIRS)
    for pair in record.accepted:  # spelled differently, and indeed one value
        first, second = pair.split(" | ")
        assert first.replace("$", "").replace(",", "") == second.replace("$", "").replace(",", "")


def test_real_outputs_are_graded_as_openai_and_abel_graded_them(shared: Path) -> None:
    agreements = evidence.case_agreement(shared / "cases", benchmarks=["gsm8k"])
    assert sum(record.total for record in agreements) > 4500
    assert [d for record in agreements for d in record.disagreements] == []


@pytest.mark.slow
def test_ours_agrees_with_more_real_outputs_than_any_published_rule(shared: Path) -> None:
    rules = evidence.rule_agreement(shared / "cases")
    official = {rule.benchmark: rule for rule in rules if rule.rule == "official"}
    assert sum(rule.total for rule in official.values()) == 4978
    assert all(rule.agree == rule.total for rule in official.values())
    assert all(official[rule.benchmark].agree >= rule.agree for rule in rules)


def test_every_disagreement_on_choices_is_one_of_running_text(shared: Path) -> None:
    agreements = evidence.case_agreement(shared / "cases", benchmarks=["mcq"])
    explanations = {d.explanation for record in agreements for d in record.disagreements}
    assert explanations == {
        "no explicit statement: a letter in running text is not read",
        "the gold is not an answer of this kind",
    }


def test_the_page_states_the_counts_and_repeats_no_response(shared: Path, tmp_path: Path) -> None:
    page = tmp_path / "grading.md"
    arguments = ["--data", shared / "data", "--cases", shared / "cases", "--out", page, "--limit", 3, "--pairs", 70]
    arguments += ["--without-suites"]
    evidence.main([str(argument) for argument in arguments])
    text = page.read_text()
    assert "| math/train | 7,496 | 2 | 2 |" in text  # of 7,500: PROTOCOLS section 0, and two empty boxes
    assert "| gsm8k/test | 3 / 3 | 3 / 3 | 3 / 3 | 3 / 3 |" in text
    assert max(map(len, text.splitlines())) < 2000
