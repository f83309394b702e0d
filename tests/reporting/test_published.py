from pathlib import Path

import pytest

from agpo_bench import paths
from agpo_bench.reporting.published import check_published, read_published


def test_the_papers_table_has_sat_and_cloze_cells_that_no_three_seeds_can_give() -> None:
    # PROTOCOLS: over 220 items 84.3 and 89.3 (over 32 none fits); cloze 18.8, 19.6, 20.5 and 25.9; the rest fits.
    table = read_published(paths.definitions("reports") / "paper" / "agpo_table1.csv")
    found = {(finding.column, finding.printed) for finding in check_published(table)}
    assert found == {
        ("sat", "84.3"),
        ("sat", "89.3"),
        ("gaokao_cloze", "18.8"),
        ("gaokao_cloze", "19.6"),
        ("gaokao_cloze", "20.5"),
        ("gaokao_cloze", "25.9"),
    }


def test_on_the_32_items_of_may_2023_all_seven_sat_cells_fail(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "method,sat\nitems,32\n" + "".join(f"m{v},{v}\n" for v in (76.1, 77.7, 84.3, 80.6, 87.9, 88.6, 89.3)),
        encoding="utf-8",
    )
    assert len(check_published(read_published(tmp_path / "t.csv"))) == 7


def test_a_wrong_average_is_found_and_a_right_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("method,a,b,average\nright,50.0,61.0,55.5\nwrong,50.0,61.0,55.9\n")
    findings = check_published(read_published(tmp_path / "t.csv"))
    assert [(f.method, f.column) for f in findings] == [("wrong", "average")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,a\nx,1\n", "header must start"),
        ("method,a\nx,1±2\n", "row 'x', column 'a': '1±2' is not a number"),
        ("method,a,b\nx,1\n", "row 'x' does not have"),
        ("# seeds: many\nmethod,a\nx,1\n", "whole numbers"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_published(tmp_path / "t.csv")
