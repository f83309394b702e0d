"""``agpo-bench report``: tables and figures from the files of the runs."""

from __future__ import annotations

from pathlib import Path

import typer


def run_report(
    *, runs: Path, formats: str, out: Path | None, specs: str | None, compare: str | None, allow_mixed: bool
) -> None:
    """Build the report, print its first table and the path of every file."""
    from agpo_bench.reporting.render import render_markdown
    from agpo_bench.reporting.report import build_report

    if compare not in (None, "paper"):
        raise ValueError(f"--compare {compare!r}: the only published figures here are the paper's; use --compare paper")
    report = build_report(
        runs,
        out=out or runs / "report",
        formats=_names(formats),
        specs=_names(specs or ""),
        compare="paper" if compare else None,
        allow_mixed=allow_mixed,
    )
    for section in report.tables[:1]:
        assert section.table is not None
        typer.echo(render_markdown(section.table, caption=section.caption, warnings=section.warnings))
    for spec, reason in report.not_printed.items():
        typer.echo(f"not printed: {spec}: {reason}")
    for file in report.files:
        typer.echo(str(file))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
