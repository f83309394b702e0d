"""Stars, daggers, differences, run statistics and the paper beside ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from agpo_bench.cli import main
from agpo_bench.reporting.captions import training_sentences
from agpo_bench.reporting.claims import FEW_SEEDS, NO_GAIN, OVERLAP
from agpo_bench.reporting.collect import collect
from agpo_bench.reporting.fill import fill
from agpo_bench.reporting.report import build_report
from agpo_bench.reporting.run_statistics import common_target, hours_to, running_mean, trailing_mean
from agpo_bench.reporting.significance import holm
from agpo_bench.reporting.spec import TableSpec
from agpo_bench.reporting.tables import Table
from tests.reporting.conftest import make_result, write_task

RunWriter = Callable[..., Path]


def _table(root: Path, **fields: Any) -> Table:
    columns = [{"use": "accuracy", "group": "", "tasks": ["gsm8k", "cmath"]}, {"use": "average"}]
    spec = TableSpec.model_validate({"kind": "table", "title": "t", "columns": columns, **fields})
    return fill("t", spec, collect(root), task_titles=str)


PAIR = [{"method": "agpo", "minus": "grpo"}]


def test_stars_are_welchs_after_holm_over_the_table(runs: Path) -> None:
    table = _table(runs, comparisons=PAIR, test="seeds")
    grpo = ([50, 52, 54], [60.5, 59.5, 60], [55.25, 55.75, 57])
    agpo = ([51.5, 52.5, 52], [70, 65, 60], [60.75, 58.75, 56])
    expected = [float(stats.ttest_ind(a, b, equal_var=False).pvalue) for a, b in zip(agpo, grpo, strict=True)]
    (row,) = table.rows
    assert [cell.p_value for cell in row.cells] == pytest.approx(holm(expected))
    assert [cell.printed() for cell in row.cells] == ["0.0", "+5.0", "+2.5"]
    assert row.title == "AGPO − GRPO"


def test_one_run_a_side_is_tested_by_mcnemar_and_its_star_is_doubted(tmp_path: Path, write_run: RunWriter) -> None:
    # AGPO is right on 30 items more and on none fewer: p = 2 / 2^30; cmath has no difference, p = 1; their average is
    # bootstrapped. Holm over three.
    write_run(tmp_path, "grpo", 42, {"gsm8k": 100, "cmath": 50})
    write_run(tmp_path, "agpo", 42, {"gsm8k": 130, "cmath": 50})
    (row,) = _table(tmp_path, comparisons=PAIR, test="items").rows
    assert row.cells[0].p_value == pytest.approx(3 * 2 / 2**30)
    assert row.cells[0].printed() == "+15.0***‡"
    assert row.cells[0].doubt == FEW_SEEDS
    assert row.cells[1].printed() == "0.0"
    assert (row.cells[2].p_value or 1) < 0.01


def test_items_are_paired_by_item_and_not_by_place(tmp_path: Path, write_run: RunWriter) -> None:
    # Both right on 100 of 200 items, but on opposite halves: no net difference, whatever the order.
    for method, rights in (("grpo", [i < 100 for i in range(200)]), ("agpo", [i >= 100 for i in range(200)])):
        directory = write_run(tmp_path, method, 42, {})
        result = make_result(score_sum=100, method=method, seed=42, tokens_used=150_100, budget=150_000)
        write_task(directory, result, rights=rights)
    (row,) = _table(tmp_path, comparisons=PAIR, test="items").rows
    assert row.cells[0].p_value == 1.0


def test_a_best_that_intervals_do_not_separate_is_doubted(runs: Path, tmp_path: Path, write_run: RunWriter) -> None:
    rows = {row.method: row for row in _table(runs).rows}
    assert rows["agpo"].cells[1].doubt == OVERLAP
    assert rows["grpo"].cells[0].doubt == ""  # all methods tie, so none is best
    write_run(tmp_path / "few", "grpo", 42, {"gsm8k": 100})
    write_run(tmp_path / "few", "agpo", 42, {"gsm8k": 180})
    assert {row.method: row.cells[0].doubt for row in _table(tmp_path / "few").rows} == {"grpo": "", "agpo": FEW_SEEDS}


def test_the_initial_model_is_not_ranked_and_a_best_that_does_not_pass_it_says_so(
    tmp_path: Path, write_run: RunWriter
) -> None:
    write_run(tmp_path, "initial", None, {"gsm8k": 104, "cmath": 20})
    for seed, better, worse in ((42, 100, 60), (1337, 102, 61), (2026, 104, 62)):
        write_run(tmp_path, "agpo", seed, {"gsm8k": better, "cmath": better})
        write_run(tmp_path, "grpo", seed, {"gsm8k": worse, "cmath": worse})
    table = _table(tmp_path)
    rows = {row.method: row for row in table.rows}
    assert [cell.mark for cell in rows["initial"].cells] == ["", "", ""]
    assert [cell.mark for cell in rows["agpo"].cells] == ["best", "best", "best"]
    assert [cell.mark for cell in rows["grpo"].cells] == ["second", "second", "second"]
    # GSM8K: 51.0 against the initial model's 52.0.
    assert [cell.doubt for cell in rows["agpo"].cells] == [NO_GAIN, "", ""]
    without = _table(tmp_path, initial_row=False)
    assert [[cell.mark for cell in row.cells] for row in without.rows] == [
        [cell.mark for cell in row.cells] for row in table.rows if row.method != "initial"
    ]


def test_captions_name_the_training_data(runs: Path) -> None:
    sentences = list(training_sentences([collect(runs)[0]]))
    assert "Trained on: embedded sample (generated problems, not the benchmarks), all." in sentences


def test_intervals_are_students(runs: Path) -> None:
    rows = {row.method: row for row in _table(runs, spread="ci95").rows}
    # GRPO, GSM8K: deviation 2 over three seeds, 2.48414 * 2 = 4.968
    assert rows["grpo"].cells[0].printed() == "52.0 ± 5.0"


def test_relative_gains_are_ours_over_baseline_less_one(runs: Path) -> None:
    (row,) = _table(runs, comparisons=PAIR, relative=True).rows
    assert row.cells[1].printed_mean() == "+8.3"  # 65 / 60 - 1


def test_recipes_and_run_statistics_are_columns(runs: Path) -> None:
    table = _table(
        runs,
        initial_row=False,
        columns=[
            {"use": "recipe", "field": "title", "title": "Title"},
            {"use": "recipe", "field": "name", "equals": "agpo", "title": "Is AGPO"},
            {"use": "run", "statistic": "tokens_per_second", "title": "Tokens/s", "decimals": 0, "better": "higher"},
            {"use": "run", "statistic": "gradient_norm_variance", "title": "Var", "normalise_to": "grpo"},
            {"use": "average", "tasks": ["gsm8k"], "minus": "grpo"},
        ],
    )
    # 150,100 tokens in six steps of ten seconds.
    assert [[cell.printed_mean() for cell in row.cells] for row in table.rows] == [
        ["AGPO", "yes", "2502", "1.0", "0.0"],
        ["GRPO", "no", "2502", "1.0", "0.0"],
    ]


def test_a_target_is_reached_by_five_steps_in_a_row(runs: Path) -> None:
    (collection,) = collect(runs)
    run = collection.runs[0]
    # Rewards .2, .3, .4, .5, .6, .7 at ten seconds a step: the means of five are .4 (after step 4) and .5 (after 5).
    assert common_target(collection.runs, "reward/mean") == pytest.approx(0.5)
    assert hours_to(run, metric="reward/mean", target=0.4 - 1e-9) == pytest.approx(50 / 3600)
    assert hours_to(run, metric="reward/mean", target=0.5 - 1e-9) == pytest.approx(60 / 3600)
    assert hours_to(run, metric="reward/mean", target=0.51) is None


def test_running_means_by_hand() -> None:
    import numpy as np

    values = np.array([1.0, 2.0, 6.0, 3.0])
    assert running_mean(values, 3).tolist() == [1.5, 3.0, 11 / 3, 4.5]
    assert trailing_mean(values, 2).tolist() == [1.5, 4.0, 4.5]


def test_ours_minus_the_paper_says_what_differs(runs: Path, tmp_path: Path) -> None:
    report = build_report(runs, out=tmp_path / "r", formats=["md"], specs=["main_results"], compare="paper")
    section = next(section for section in report.tables if section.is_against_paper)
    assert section.table is not None
    row = next(row for row in section.table.rows if row.method == "agpo")
    # 52.0 - 67.3 and 65.0 - 77.6
    columns = [column.full_title for column in section.table.columns]
    assert row.cells[columns.index("English: GSM8K − paper")].printed() == "-15.3"
    assert row.cells[columns.index("Chinese: CMATH − paper")].printed() == "-12.6"
    # Beside the numbers they belong to, and nothing for a row that the paper does not have.
    assert row.cells[columns.index("English: GSM8K − paper") - 1].printed_mean() == "52.0"
    initial = section.table.rows[0]
    assert initial.method == "initial"
    assert initial.cells[columns.index("English: GSM8K − paper")].note == "not in the paper"
    assert "model: Qwen2.5-14B there, embedded here" in section.caption
    assert "budget: 300,000,000 there, 150,000 here" in section.caption
    assert "gsm8k 1319 there, 200 here" in section.caption


def test_the_command_ends_with_the_page_and_check_finds_the_papers_cells(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["agpo-bench", "report", "--runs", str(runs), "--spec", "main_results,solve_rates"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(runs / "report" / "report.html")
    assert any("65.0" in line and "AGPO" in line for line in lines)
    paper = Path(__file__).parents[2] / "reports" / "paper" / "gapo_table3_qwen_pass1.csv"
    monkeypatch.setattr("sys.argv", ["agpo-bench", "report", "--check", str(paper)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert "gspo_asym, average: 37.7: the mean of its 6 cells is 37.490" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"test": "seeds"}, "add comparisons or difference_to"),
        ({"comparisons": PAIR, "methods": ["agpo"]}, "take the place"),
        ({"columns": [{"use": "accuracy", "group": "", "tasks": ["gsm8k"], "measure": "pass"}]}, "needs a k"),
    ],
)
def test_a_spec_that_cannot_be_meant_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableSpec.model_validate({"kind": "table", "title": "t", "columns": [{"use": "average"}], **fields})
