"""``agpo-bench report``: tables and figures from the files of the runs, or a check of a published table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
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
    differences = [section for section in report.tables[1:] if section.is_against_paper]
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
    """The table without its empty columns; without the spread where the screen is too narrow for it."""
    table = section.table
    assert table is not None
    kept = [
        index
        for index in range(len(table.columns))
        if any(row.cells[index].mean is not None or row.cells[index].text for row in table.rows)
    ]
    widths = [max(len(row.cells[index].printed()) for row in table.rows) for index in kept]
    is_wide = sum(widths) + 3 * len(kept) + max(len(row.title) for row in table.rows) <= console.width
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    grid.add_column("Method", no_wrap=True)
    for index in kept:
        grid.add_column(table.columns[index].title, justify="right", overflow="fold")
    for row in table.rows:
        grid.add_row(Text(row.title), *(_styled(row.cells[index], with_spread=is_wide) for index in kept))
    console.print(Text(section.title, style="bold"))
    console.print(grid)
    console.print(Text(section.caption, style="dim"))
    for warning in section.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    console.print()


def _styled(cell: Cell, *, with_spread: bool) -> Text:
    text = cell.printed() if with_spread else cell.printed_mean() + cell.printed_marks()
    return Text(text, style={"best": "bold", "second": "italic", "": ""}[cell.mark])
