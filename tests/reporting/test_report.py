from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agpo_bench.reporting.collect import collect
from agpo_bench.reporting.fill import fill
from agpo_bench.reporting.render import escape_tex, render_markdown, render_tex
from agpo_bench.reporting.report import build_report
from agpo_bench.reporting.spec import TableSpec, load_spec, spec_names
from agpo_bench.reporting.validators import warnings

RunWriter = Callable[..., Path]
GOLDEN = Path(__file__).parent / "golden"
SPEC = TableSpec.model_validate(
    {
        "kind": "table",
        "title": "Main results",
        "methods": ["grpo", "agpo"],
        "columns": [
            {"use": "accuracy", "group": "English", "tasks": ["gsm8k"]},
            {"use": "accuracy", "group": "Chinese", "tasks": ["cmath"]},
            {"use": "average"},
        ],
    }
)
TITLES = {"gsm8k": "GSM8K", "cmath": "CMATH"}


def test_markdown_equals_the_golden_file(runs: Path) -> None:
    # By hand: GRPO gsm8k 50, 52, 54 -> 52.0 ± 2.0; AGPO 51.5, 52.5, 52 -> 52.0 ± 0.5: all methods tie, none is best.
    # cmath: GRPO 60.5, 59.5, 60 -> 60.0 ± 0.5; AGPO 70, 65, 60 -> 65.0 ± 5.0.
    # Average by seed: GRPO 55.25, 55.75, 57 -> 56.0 ± 0.9; AGPO 60.75, 58.75, 56 -> 58.5 ± 2.4.
    # Daggers: 65.0 ± 2.484 * 5.0 and 58.5 ± 2.484 * 2.4 reach into GRPO's intervals.
    table = fill("main_results", SPEC, collect(runs), task_titles=TITLES.__getitem__)
    text = render_markdown(table, caption="A caption.", warnings=["A warning."])
    assert text == (GOLDEN / "main_results.md").read_text(encoding="utf-8")


def test_latex_equals_the_golden_file(runs: Path) -> None:
    table = fill("main_results", SPEC, collect(runs), task_titles=TITLES.__getitem__)
    text = render_tex(table, caption="A caption of 100 % & more.", warnings=["A_warning."])
    assert text == (GOLDEN / "main_results.tex").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine; CI installs it")
def test_every_table_compiles_with_pdflatex_without_a_warning(runs: Path, tmp_path: Path) -> None:
    report = build_report(runs, out=tmp_path / "report", formats=["tex"], compare="paper")
    inputs = "\n".join(rf"\input{{{file.name}}}" for file in report.files if file.suffix == ".tex")
    packages = r"\usepackage[margin=1cm,landscape,a3paper]{geometry}\usepackage{booktabs,siunitx,graphicx}"
    body = r"\documentclass{article}" + packages + r"\begin{document}\footnotesize " + inputs + r"\end{document}"
    (tmp_path / "report" / "main.tex").write_text(body, encoding="utf-8")
    for _ in range(2):  # the second pass resolves the labels
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"],
            cwd=tmp_path / "report",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout
    log = (tmp_path / "report" / "main.log").read_text(encoding="utf-8", errors="replace")
    assert "Warning" not in log, log
    assert "Overfull" not in log, log


def test_latex_special_characters_are_escaped() -> None:
    assert escape_tex(r"50 % of a_b & $c$ #1 {x} ~ ^ \y") == (
        r"50 \% of a\_b \& \$c\$ \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}y"
    )


def test_one_seed_prints_no_deviation(tmp_path: Path, write_run: RunWriter) -> None:
    write_run(tmp_path, "grpo", 42, {"gsm8k": 100, "cmath": 100})
    table = fill("t", SPEC, collect(tmp_path), task_titles=TITLES.__getitem__)
    assert "±" not in render_markdown(table, caption="", warnings=[])


def test_an_incomplete_result_prints_no_number(tmp_path: Path, write_run: RunWriter) -> None:
    write_run(tmp_path, "grpo", 42, {"gsm8k": 100}, is_complete=False, error_count=2)
    (collection,) = collect(tmp_path)
    table = fill("t", SPEC, [collection], task_titles=TITLES.__getitem__)
    assert [cell.printed_mean() for cell in table.rows[0].cells] == ["–", "–", "–"]
    assert any("incomplete" in sentence for sentence in warnings(collection, ["gsm8k"]))


def test_differences_are_taken_before_rounding(runs: Path) -> None:
    spec = SPEC.model_copy(update={"difference_to": "grpo", "initial_row": False})
    table = fill("t", spec, collect(runs), task_titles=TITLES.__getitem__)
    assert [(row.method, [cell.printed_mean() for cell in row.cells]) for row in table.rows] == [
        ("agpo", ["0.0", "+5.0", "+2.5"])
    ]


def test_warnings_name_what_limits_the_comparison(tmp_path: Path, write_run: RunWriter) -> None:
    write_run(tmp_path, "grpo", 42, {"gsm8k": 100}, truncation_rate=0.2)
    write_run(tmp_path, "agpo", 1337, {"gsm8k": 100}, parse_rate=0.5, num_leaked=3)
    text = "\n".join(warnings(collect(tmp_path)[0], ["gsm8k"]))
    assert "initial model was not evaluated on gsm8k" in text
    assert "3 items are shown with their solution" in text
    assert "Fewer than 3 seeds for AGPO, GRPO" in text
    assert "different seeds" in text
    assert "length limit (GRPO seed 42 20 %)" in text
    assert "readable answer (AGPO seed 1337 50 %)" in text


def test_every_cell_is_traced_to_files_that_exist(runs: Path, tmp_path: Path) -> None:
    build_report(runs, out=tmp_path / "report")
    with (tmp_path / "report" / "cells.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["printed"] != "–"]
    assert rows
    for row in rows:
        assert row["files"]
        assert all((runs / name).is_file() for name in row["files"].split())


def test_the_report_names_the_data_source_and_ends_with_figures(runs: Path, tmp_path: Path) -> None:
    report = build_report(runs, out=tmp_path / "report", formats=["md"])
    text = report.main_file.read_text(encoding="utf-8")
    assert "embedded sample" in text
    assert "![clip radius ε: GRPO from 0.2 to 0.15" in text
    assert (tmp_path / "report" / "clip_and_kl.png").read_bytes().startswith(b"\x89PNG")
    assert "- Cross-family results, because all runs started from one model (embedded)." in text
    assert "- Maj@k, because no result has sampled draws" in text


def test_building_a_report_twice_gives_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    first = build_report(runs, out=tmp_path / "one")
    second = build_report(runs, out=tmp_path / "two")
    assert [f.read_bytes() for f in first.files] == [f.read_bytes() for f in second.files]


def test_every_spec_in_the_folder_loads() -> None:
    assert {load_spec(name).kind for name in spec_names()} == {"table", "figure", "curve", "heatmap"}


def test_a_wrong_spec_names_the_file_and_the_field(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("kind: table\ntitle: x\ncolumns: []\nrowz: 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine.yaml: .*rowz"):
        load_spec(str(tmp_path / "mine.yaml"))


def test_reporting_imports_no_torch() -> None:
    code = "import sys, agpo_bench.reporting.report, agpo_bench.reporting.figures; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
