"""What is read, what is recomputed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from agpo_bench.evaluation.estimators import pass_at_k
from agpo_bench.evaluation.results import write_samples
from agpo_bench.reporting.collect import collect
from agpo_bench.reporting.item_scores import disagreements, read_item_scores
from agpo_bench.reporting.report import build_report
from agpo_bench.reporting.validators import mismatches, warnings
from tests.reporting.conftest import make_result, sample, write_task

RunWriter = Callable[..., Path]


def test_item_scores_are_those_of_the_lines(tmp_path: Path) -> None:
    # Item 3: greedy right, draws right and wrong. Item 5: greedy failed, one draw failed, one partly right.
    lines = [
        sample(3, 0, is_right=True),
        sample(3, 1, is_right=True),
        sample(3, 2, is_right=False),
        sample(5, 0, is_right=False, is_error=True, answer=None),
        sample(5, 1, is_right=False, score=0.25, is_truncated=True),
        sample(5, 2, is_right=False, is_error=True),
    ]
    write_samples(tmp_path / "s.jsonl", lines)
    scores = read_item_scores(tmp_path / "s.jsonl")
    assert scores.doc_id_I.tolist() == [3, 5]
    assert scores.greedy_I[0] == 1.0 and np.isnan(scores.greedy_I[1])
    assert scores.sampled_sum_I.tolist() == [1.0, 0.25]
    assert scores.sampled_right_I.tolist() == [1, 0]
    assert scores.sampled_count_I.tolist() == [2, 1]
    assert scores.failed_I.tolist() == [0, 1]
    assert scores.parsed_I.tolist() == [True, False]
    assert scores.mean_of_draws() == (0.5 + 0.25) / 2
    assert scores.pass_at(2) == 1.0  # item 5 has a failed draw and is left out
    assert scores.pass_at(3) is None


def test_pass_at_k_over_many_items_equals_the_exact_estimator(tmp_path: Path) -> None:
    lines = [
        sample(item, draw, is_right=draw <= item)  # item i has i right draws of 9, and a greedy one
        for item in range(10)
        for draw in range(10)
    ]
    write_samples(tmp_path / "s.jsonl", lines)
    scores = read_item_scores(tmp_path / "s.jsonl")
    for k in (1, 4, 9):
        exact = [pass_at_k(9, item, k) for item in range(10)]
        assert scores.pass_at(k) == pytest.approx(sum(value or 0 for value in exact) / 10, abs=1e-12)


def test_majority_votes_are_counted_again_from_the_lines(tmp_path: Path) -> None:
    # Item 0: 7 (right), 7 and 9: Maj@3 is 1, Maj@1 2/3. Item 1: 4 and 5 (right) tie, one abstains: 1/2 and 1/3.
    lines = [
        sample(0, 0, is_right=True),
        sample(0, 1, is_right=True, vote=1),
        sample(0, 2, is_right=True, vote=1),
        sample(0, 3, is_right=False, vote=3),
        sample(1, 0, is_right=True),
        sample(1, 1, is_right=False, answer=None),
        sample(1, 2, is_right=False, vote=2),
        sample(1, 3, is_right=True, vote=3),
    ]
    write_samples(tmp_path / "s.jsonl", lines)
    scores = read_item_scores(tmp_path / "s.jsonl")
    assert scores.majority_at(3) == pytest.approx(3 / 4)
    assert scores.majority_at(1) == pytest.approx(1 / 2)
    assert scores.majority_at(4) is None
    stated = make_result(num_items=2, num_draws=3, score_sum=2.0, maj={1: 0.5, 3: 0.8})
    assert "maj 3 is 0.8 in results.json and 0.75 in samples.jsonl" in list(disagreements(stated, scores))
    assert not [line for line in disagreements(stated, scores) if line.startswith("maj 1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("not json\n", "not sample lines"), ('{"doc_id": 1}\n', "a line without")],
)
def test_a_broken_samples_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"s\.jsonl.*{message}"):
        read_item_scores(tmp_path / "s.jsonl")


def test_a_result_that_its_samples_contradict_prints_no_number(runs: Path) -> None:
    file = runs / "agpo" / "seed-42" / "eval" / "gsm8k" / "results.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(content | {"score_sum": 190.0, "accuracy": 0.95}), encoding="utf-8")
    (collection,) = collect(runs)
    told = "\n".join(warnings(collection, ["gsm8k"]))
    assert "AGPO seed 42 (gsm8k): score_sum is 190.0 in results.json and 103.0 in samples.jsonl" in told
    report = build_report(runs, out=runs / "report", formats=["md"], specs=["main_results"])
    assert report.tables[0].table is not None
    row = next(row for row in report.tables[0].table.rows if row.method == "agpo")
    assert row.cells[0].printed_mean() == "–"


def test_an_unfinished_run_is_never_a_final_number(runs: Path) -> None:
    ledger = runs / "agpo" / "seed-42" / "ledger.json"
    ledger.write_text(json.dumps({"budget": 150_000, "used": 90_000, "phases": {}}), encoding="utf-8")
    (collection,) = collect(runs)
    problem = collection.evaluated["agpo", 42, "gsm8k"].problem
    assert problem == "the run is not finished (90,000 of 150,000 tokens)"


def test_a_result_of_an_earlier_checkpoint_is_no_final_number(tmp_path: Path, write_run: RunWriter) -> None:
    write_run(tmp_path, "grpo", 42, {"gsm8k": 100}, tokens_used=80_000)
    (collection,) = collect(tmp_path)
    assert "before the run's end" in collection.evaluated["grpo", 42, "gsm8k"].problem


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data_source": "hub openai/gsm8k"}, "mixes data sources: embedded sample, hub openai/gsm8k"),
        ({"data_checksum": "1" * 64}, "mixes versions of the data"),
        ({"protocol_version": 99}, "mixes protocol versions"),
        ({"grading_mode": "lm_eval"}, "mixes grading rules: lm_eval, official"),
        ({"max_new_tokens": 41}, "mixes length limits: 40, 41"),
        ({"num_few_shot": 4}, "mixes few-shot settings"),
    ],
)
def test_what_does_not_compare_is_refused_unless_told(
    tmp_path: Path, write_run: RunWriter, fields: dict[str, object], words: str
) -> None:
    root = tmp_path / "runs"
    write_run(root, "grpo", 42, {"gsm8k": 100})
    write_run(root, "agpo", 42, {"gsm8k": 100}, **fields)
    assert any(words in sentence for sentence in mismatches(collect(root)[0], ["gsm8k"], uses_draws=False))
    with pytest.raises(ValueError, match="--allow-mixed"):
        build_report(root, out=tmp_path / "report", formats=["md"])
    report = build_report(root, out=tmp_path / "report", formats=["md"], allow_mixed=True)
    assert "Mixed on request (--allow-mixed)" in report.tables[0].caption
    assert words in report.tables[0].caption


def test_draws_that_do_not_compare_leave_the_greedy_tables_alone(runs: Path, tmp_path: Path) -> None:
    file = runs / "agpo" / "seed-42" / "eval" / "gsm8k" / "results.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(content | {"temperature": 0.7}), encoding="utf-8")
    report = build_report(runs, out=tmp_path / "r", formats=["md"], specs=["main_results", "average_at_n"])
    assert [section.anchor for section in report.tables] == ["main_results"]
    (reason,) = report.not_printed.values()
    assert "mixes temperatures of the draws: 0.7, None" in reason


def test_runs_of_different_budgets_or_recipes_are_refused(runs: Path) -> None:
    config = runs / "agpo" / "seed-42" / "config.yaml"
    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    config.write_text(yaml.safe_dump(content | {"budget": 100_000, "sampler_rows": 7}), encoding="utf-8")
    recipe = runs / "grpo" / "seed-42" / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"name": "grpo", "title": "GRPO", "group_size": 16}), encoding="utf-8")
    told = mismatches(collect(runs)[0], ["gsm8k"], uses_draws=False)
    assert any("different budget: " in sentence and "100000 (agpo/seed-42)" in sentence for sentence in told)
    assert any("seeds of GRPO were trained by different recipes" in sentence for sentence in told)
    assert not any("sampler_rows" in sentence for sentence in told)  # changes speed only


def test_totals_may_differ_by_one_rollout_batch(runs: Path) -> None:
    """32 prompts, groups of 8, 40 tokens: 10,240 at most. A probe of 8 doubles it."""
    ledger, recipe = (runs / "agpo" / "seed-42" / name for name in ("ledger.json", "recipe.yaml"))

    def told(used: int) -> list[str]:
        ledger.write_text(json.dumps({"budget": 150_000, "used": used, "phases": {}}), encoding="utf-8")
        return [sentence for sentence in warnings(collect(runs)[0], ["gsm8k"]) if sentence.startswith("Unequal")]

    assert told(150_100 + 10_240) == []
    (sentence,) = told(150_100 + 10_241)
    assert sentence.endswith("more than one rollout batch (10,240 tokens at most) apart.")
    assert "agpo/seed-42 160,341 tokens" in sentence
    recipe.write_text(yaml.safe_dump({"name": "agpo", "title": "AGPO", "probe": {"use": "group"}}), encoding="utf-8")
    assert told(150_100 + 20_480) == []
    assert len(told(150_100 + 20_481)) == 1


def test_different_budgets_are_unequal_whatever_was_used(runs: Path) -> None:
    config = runs / "agpo" / "seed-42" / "config.yaml"
    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    config.write_text(yaml.safe_dump(content | {"budget": 149_000}), encoding="utf-8")
    told = warnings(collect(runs)[0], ["gsm8k"])
    assert any(sentence.startswith("Unequal budgets: agpo/seed-42 149,000 tokens, ") for sentence in told)


def test_two_runs_of_one_seed_are_refused(tmp_path: Path, write_run: RunWriter) -> None:
    for experiment in ("first", "second"):
        write_run(tmp_path / experiment, "grpo", 42, {"gsm8k": 100})
    with pytest.raises(ValueError, match="two runs of grpo with seed 42"):
        collect(tmp_path)


def test_a_sum_that_no_items_can_give_is_named(tmp_path: Path, write_run: RunWriter) -> None:
    directory = write_run(tmp_path, "grpo", 42, {})
    result = make_result(score_sum=100.5, method="grpo", seed=42, tokens_used=150_100, budget=150_000)
    write_task(directory, result)
    (directory / "eval" / "gsm8k" / "samples.jsonl").unlink()
    told = "\n".join(warnings(collect(tmp_path)[0], ["gsm8k"]))
    assert "a score sum of 100.5 cannot come from 200 0/1 items" in told
    assert "1 of 1 results have no samples beside them" in told


def test_runs_from_several_models_are_families(tmp_path: Path, write_run: RunWriter) -> None:
    # Means by hand: model a 50.0, 60.0; model b 55.0, 70.0; both tasks alike, so the averages are 52.5 and 65.0.
    for model, grpo, agpo in (("a", 100, 120), ("b", 110, 140)):
        for method, right in (("grpo", grpo), ("agpo", agpo)):
            directory = write_run(tmp_path / f"runs-{model}", method, 42, {"gsm8k": right, "mmlu_stem": right})
            config = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
            (directory / "config.yaml").write_text(yaml.safe_dump(config | {"model": model}), encoding="utf-8")
    report = build_report(tmp_path, out=tmp_path / "report", formats=["md"], specs=["main_results", "cross_family"])
    assert [section.title for section in report.tables] == [
        "Main results (a)",
        "Main results (b)",
        "Cross-family results",
    ]
    table = report.tables[2].table
    assert table is not None
    assert [[cell.printed_mean() for cell in row.cells] for row in table.rows] == [
        ["50.0", "55.0", "50.0", "55.0", "52.5"],
        ["60.0", "70.0", "60.0", "70.0", "65.0"],
    ]


def test_a_training_text_that_is_a_test_item_is_told(runs: Path) -> None:
    told = {"dedup": "report", "num_copies": 7, "not_compared": [], "summary": "7 copies"}
    (runs / "agpo" / "seed-42" / "contamination.json").write_text(json.dumps(told), encoding="utf-8")
    assert "AGPO seed 42: trained on 7 problems that are copies of test items." in warnings(collect(runs)[0], ["gsm8k"])
