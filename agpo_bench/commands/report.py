"""``agpo-bench report``: tables and figures from the files of the runs, or a check of a published table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

if TYPE_CHECKING:
    from agpo_bench.reporting.page import Section
    from agpo_bench.reporting.tables import Cell


def run_report(
    *, runs: Path, formats: str, out: Path | None, specs: str | None, compare: str | None, allow_mixed: bool
) -> None:
    """Build the report, print its first table and, last, the path of the file to open."""
    from agpo_bench.reporting.report import build_report

    if compare not in (None, "paper"):
        raise ValueError(f"--compare {compare!r}: the only published figures here are the papers'; use --compare paper")
    report = build_report(
        runs,
        out=out or runs / "report",
        formats=_names(formats),
        specs=_names(specs or ""),
        compare="paper" if compare else None,
        allow_mixed=allow_mixed,
    )
    console = Console()
    differences = [section for section in report.tables if section.is_against_paper]
    for section in [*report.tables[:1], *differences]:
        _show(section, console)
    for title, reason in sorted(report.not_printed.items()):
        console.print(Text(f"not printed: {title}, because {reason}", style="dim"))
    typer.echo(f"{len(report.files)} files in {report.main_file.parent}; open:")
    typer.echo(str(report.main_file))


def check_table(file: Path) -> None:
    """Say which cells of a published table cannot be right as described; exit status 1 when there are any."""
    from agpo_bench.reporting.published import check_published, read_published

    table = read_published(file)
    findings = check_published(table)
    for finding in findings:
        typer.echo(f"{finding.method}, {finding.column}: {finding.printed}: {finding.explanation}")
    cells = sum(map(len, table.rows.values()))
    typer.echo(f"{file}: {len(findings)} of {cells} cells cannot be right as described ({table.source})")
    if findings:
        raise typer.Exit(1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _show(section: Section, console: Console) -> None:
    table = section.table
    assert table is not None
    grid = Grid(title=section.title, caption=section.caption, caption_justify="left", title_justify="left")
    grid.add_column("Method")
    for column in table.columns:
        grid.add_column(column.title, justify="right")
    for row in table.rows:
        grid.add_row(Text(row.title), *map(_styled, row.cells))
    console.print(grid)
    for warning in section.warnings:
        console.print(Text(f"! {warning}", style="yellow"))


def _styled(cell: Cell) -> Text:
    return Text(cell.printed(), style={"best": "bold", "second": "italic", "": ""}[cell.mark])
