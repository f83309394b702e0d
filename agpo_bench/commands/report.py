"""``agpo-bench report``: tables and figures from the files of the runs."""

from __future__ import annotations

from pathlib import Path

import typer


def run_report(*, runs: Path, formats: str, out: Path | None) -> None:
    """Build the report, print its first table and the path of every file."""
    from agpo_bench.reporting.render import render_markdown
    from agpo_bench.reporting.report import build_report

    names = tuple(part.strip() for part in formats.split(",") if part.strip())
    report = build_report(runs, out=out or runs / "report", formats=names)
    if report.tables:
        typer.echo(render_markdown(report.tables[0], caption=report.captions[0], warnings=report.warnings))
    for file in report.files:
        typer.echo(str(file))
