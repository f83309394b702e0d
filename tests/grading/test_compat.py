"""The compatible modes against verdicts obtained by running the references, and against examples of each defect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agpo_bench.grading.boxed import last_boxed
from agpo_bench.grading.compat import deepseek, lm_eval
from agpo_bench.grading.compat.minerva import normalize
from agpo_bench.grading.compat.rule import Outcome, Rule
from agpo_bench.grading.compat.xiaomi import is_leniently_right
from agpo_bench.grading.graders import get_grader
from agpo_bench.records import Reference


def xiaomi(response: str, reference: Reference) -> Outcome:
    return Outcome(response, is_leniently_right(response, reference.gold))


COLUMNS: dict[tuple[str, str], Rule] = {
    ("gsm8k", "lm_eval.gsm8k.strict"): lm_eval.gsm8k_strict,
    ("gsm8k", "lm_eval.gsm8k_cot.strict"): lm_eval.gsm8k_cot_strict,
    ("gsm8k", "lm_eval.flexible"): lm_eval.gsm8k_flexible,
    ("gsm8k", "deepseek.few_shot"): deepseek.gsm8k_few_shot,
    ("gsm8k", "deepseek.zero_shot"): deepseek.gsm8k_zero_shot,
    ("math", "lm_eval.hendrycks_math"): lm_eval.hendrycks_math,
    ("math", "lm_eval.minerva_math"): lm_eval.minerva_math,
    ("math", "deepseek.eval_math"): deepseek.math,
    ("ocw", "deepseek.eval_ocwcourses"): deepseek.ocw,
    ("ocw", "llemma.ocw_courses"): lm_eval.ocw,
    ("mcq", "deepseek.sat/mmlu"): deepseek.choice,
    ("mcq", "lm_eval.mmlu_flan_cot_fewshot"): lm_eval.choice,
    ("cmath", "deepseek.few_shot"): deepseek.cmath_few_shot,
    ("cmath", "deepseek.zero_shot"): deepseek.cmath_zero_shot,
    ("cmath", "xiaomi.official"): xiaomi,
    ("gaokao_cloze", "deepseek.few_shot"): deepseek.blanks,
    ("gaokao_cloze", "lm_eval.agieval_gaokao_mathcloze"): lm_eval.blanks,
    ("gaokao_qa", "deepseek.few_shot"): deepseek.choice,
}


@pytest.mark.shared
@pytest.mark.parametrize("column", COLUMNS, ids="-".join)
def test_a_reference_gives_the_same_verdict_on_every_probe(shared: Path, column: tuple[str, str]) -> None:
    benchmark, reference_name = column
    different, checked = [], 0
    for line in (shared / "cases" / "reference_probes.jsonl").read_text().splitlines():
        probe = json.loads(line)
        for name, verdict in probe["verdicts"].items():
            if probe["benchmark"] != benchmark or name.split("(")[0] != reference_name or verdict is None:
                continue
            checked += 1
            question = "题" if benchmark == "gaokao_qa" else ""
            outcome = COLUMNS[column](probe["response"], Reference(gold=probe["gold"], question=question))
            if outcome.is_right != verdict:
                different.append((probe["gold"], probe["response"], verdict))
    assert checked > 9
    assert different == []


def solution_box(row: dict[str, Any]) -> str:
    return last_boxed(row["solution"]) or ""


def gsm8k_gold(row: dict[str, Any]) -> str:
    return str(row["answer"]).rpartition("####")[2].strip()


def minerva(response: str, reference: Reference) -> Outcome:
    return Outcome(response, lm_eval.minerva_equal(normalize(response), normalize(reference.gold)))


REJECTIONS: list[tuple[str, str, Callable[[dict[str, Any]], str], Callable[[str], str], Rule]] = [
    ("gsm8k|deepseek.few_shot", "gsm8k", gsm8k_gold, "The answer is {}.".format, deepseek.gsm8k_few_shot),
    ("gsm8k|lm_eval.flexible", "gsm8k", gsm8k_gold, "The answer is {}.".format, lm_eval.gsm8k_flexible),
    ("cmath|deepseek.few_shot", "cmath", lambda row: row["golden"], "所以答案是：{}。".format, deepseek.cmath_few_shot),
    ("gaokao_mathqa|deepseek", "gaokao_mathqa", lambda row: row["label"], "答案是 {}".format, deepseek.choice),
    (
        'gaokao_mathcloze|deepseek.few_shot(答案是)|"答案是 <gold verbatim>',
        "gaokao_mathcloze",
        lambda row: row["answer"],
        "答案是 {}".format,
        deepseek.blanks,
    ),
    (
        'gaokao_mathcloze|deepseek.few_shot(答案是)|"答案是 <gold without',
        "gaokao_mathcloze",
        lambda row: row["answer"],
        lambda gold: "答案是 " + gold.replace("$", ""),
        deepseek.blanks,
    ),
    (
        'gaokao_mathcloze|lm_eval.agieval_gaokao_mathcloze|"答案是 <gold verbatim>',
        "gaokao_mathcloze",
        lambda row: row["answer"],
        "答案是 {}".format,
        lm_eval.blanks,
    ),
    (
        'gaokao_mathcloze|lm_eval.agieval_gaokao_mathcloze|"答案是 <gold without',
        "gaokao_mathcloze",
        lambda row: row["answer"],
        lambda gold: "答案是 " + gold.replace("$", ""),
        lm_eval.blanks,
    ),
    (
        "ocw|deepseek",
        "ocw",
        lambda row: row["answer"],
        "Final answer: The final answer is {}. I hope it is correct.".format,
        deepseek.ocw,
    ),
    (
        "ocw|llemma",
        "ocw",
        lambda row: row["answer"],
        "Final answer: The final answer is {}. I hope it is correct.".format,
        lm_eval.ocw,
    ),
    ("math|lm_eval.minerva_math", "math", solution_box, "{}".format, minerva),
]


@pytest.mark.shared
@pytest.mark.parametrize("case", REJECTIONS, ids=lambda case: case[0].split("|")[0] + "-" + case[0].split("|")[1][:24])
def test_a_reference_rejects_the_golds_it_is_known_to_reject(
    shared: Path, case: tuple[str, str, Callable[[dict[str, Any]], str], Callable[[str], str], Rule]
) -> None:
    name, folder, gold_of, sentence, rule = case
    known = json.loads((shared / "cases" / "ungradable_items.json").read_text())["rules"]
    (expected,) = [rows["indices"] for key, rows in known.items() if key.startswith(name)]
    rows = [json.loads(line) for line in (shared / "data" / folder / "test.jsonl").read_text().splitlines()]
    rejected = []
    for index, row in enumerate(rows):
        gold = gold_of(row)
        if not rule(sentence(gold), Reference(gold=gold, question=row.get("question", ""))).is_right:
            rejected.append(index)
    assert rejected == expected


def test_deepseek_keeps_its_hundredfold_rule_and_its_tail_of_a_comma_number() -> None:
    reference = Reference(gold="18")
    assert deepseek.gsm8k_few_shot("The answer is 1800.", reference).is_right
    assert deepseek.gsm8k_few_shot("The answer is 0.18.", reference).is_right
    assert not deepseek.gsm8k_few_shot("The answer is 2,500.", Reference(gold="2,500")).is_right


def test_few_shot_prompting_chooses_the_other_deepseek_rule() -> None:
    reference = Reference(gold="18")
    zero, few = (get_grader("number", mode="deepseek", style="gsm8k", num_few_shot=n) for n in (0, 8))
    response = "The answer is 18 dollars."
    assert (zero.grade(response, reference).score, few.grade(response, reference).score) == (0.0, 1.0)
    assert zero.grade(response, reference).alternatives == {"deepseek_few_shot": 1.0}


def test_lm_eval_grades_the_last_number_and_logs_the_strict_patterns() -> None:
    grader = get_grader("number", mode="lm_eval", style="gsm8k")
    verdict = grader.grade("So it is 18", Reference(gold="18"))
    assert (verdict.score, verdict.alternatives) == (1.0, {"lm_eval_strict": 0.0, "lm_eval_cot_strict": 0.0})


@pytest.mark.parametrize("mode", ["deepseek", "lm_eval"])
@pytest.mark.parametrize(
    "options", [("number", {"style": "gsm8k"}), ("number", {"style": "cmath"}), ("choice", {}), ("blanks", {}),
                ("expression", {"style": "math"}), ("expression", {"style": "ocw"})]
)  # fmt: skip
def test_every_kind_has_every_mode_and_survives_anything(mode: str, options: tuple[str, dict[str, str]]) -> None:
    kind, style = options
    grader = get_grader(kind, mode=mode, num_few_shot=0, **style)  # type: ignore[arg-type]
    for response in (
        "",
        "\x00",
        "答案是",
        "\\boxed{",
        "9" * 5000,
        "The answer is " + "(" * 300,
        "\ud800",
        "x" * 500_000,
    ):
        verdict = grader.grade(response, Reference(gold="B" if kind == "choice" else "3"))
        assert verdict.score == 0.0
    assert grader.grade("3", Reference(gold="")).is_error


def test_unknown_kinds_modes_and_options_are_named() -> None:
    with pytest.raises(ValueError, match="no grader kind 'essay'"):
        get_grader("essay")
    with pytest.raises(ValueError, match="no grading mode 'qwen'"):
        get_grader("number", mode="qwen")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no option 'colour'"):
        get_grader("number", colour="red")
