"""Build a report: every spec in ``reports/`` filled from the files of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agpo_bench.data.benchmarks import load_task
from agpo_bench.files import write_whole
from agpo_bench.reporting import tidy
from agpo_bench.reporting.against_paper import beside_paper, comparison_caption, published
from agpo_bench.reporting.captions import table_caption, tasks_of, uses_draws
from agpo_bench.reporting.collect import Collection, collect
from agpo_bench.reporting.figure_data import Figure, curve_figure, heatmap_figure, metrics_figure
from agpo_bench.reporting.fill import A_COLUMN_IS_MISSING, fill
from agpo_bench.reporting.page import Section, render_page
from agpo_bench.reporting.render import render_markdown, render_markdown_figure, render_tex
from agpo_bench.reporting.spec import (
    AccuracyColumns,
    AnySpec,
    CurveSpec,
    FamilyColumns,
    FigureSpec,
    HeatmapSpec,
    TableSpec,
    load_spec,
    spec_names,
)
from agpo_bench.reporting.validators import impossible_means, mismatches, warnings

FORMATS = ("md", "tex", "html", "csv")
_FIRST = ("main_results", "intervals", "pairwise", "paired_items", "throughput", "cross_family")
"""Specs printed first; the rest follow by name, tables before figures."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written, and the sections for the screen."""

    files: tuple[Path, ...]
    """The file to open first stands first."""
    sections: tuple[Section, ...]
    not_printed: dict[str, str]
    """Specs that do not apply to these runs, and why."""

    @property
    def main_file(self) -> Path:
        """The file to open first."""
        return self.files[0]

    @property
    def tables(self) -> tuple[Section, ...]:
        """Sections that hold a table."""
        return tuple(section for section in self.sections if section.table is not None)


@dataclass(kw_only=True)
class _Builder:
    collections: tuple[Collection, ...]
    allow_mixed: bool
    compare: Literal["paper"] | None
    sections: list[Section] = field(default_factory=list)
    not_printed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, spec: AnySpec) -> None:
        """Every section of one spec: one a model, or one over all models."""
        stem = Path(name).stem
        if isinstance(spec, TableSpec) and any(isinstance(column, FamilyColumns) for column in spec.columns):
            if len(self.collections) < 2:
                self.not_printed[spec.title] = f"all runs started from one model ({self.collections[0].model})"
                return
            self._add_table(stem, spec, self.collections)
            return
        for number, collection in enumerate(self.collections):
            suffix = f"_{number + 1}" if len(self.collections) > 1 else ""
            if isinstance(spec, TableSpec):
                self._add_table(stem + suffix, spec, (collection,))
            else:
                self._add_figure(stem + suffix, spec, collection)

    def _add_table(self, name: str, spec: TableSpec, collections: tuple[Collection, ...]) -> None:
        tasks = [t for t in tasks_of(spec) if any(key[2] == t for c in collections for key in c.evaluated)]
        reason = _missing(spec, collections[0], tasks)
        if reason:
            self.not_printed.setdefault(spec.title, reason)
            return
        mixed = [m for c in collections for m in mismatches(c, tasks, uses_draws=uses_draws(spec))]
        greedy = [m for c in collections for m in mismatches(c, tasks, uses_draws=False)]
        if mixed and not greedy and not self.allow_mixed:  # the draws alone: no reason to refuse the other tables
            self.not_printed.setdefault(spec.title, f"it would mix draws: {' '.join(mixed).rstrip('.')}")
            return
        if mixed and not self.allow_mixed:
            raise ValueError(
                f"{spec.title} would mix what does not compare: {' '.join(mixed)} Pass --runs with one experiment, "
                "evaluate again, or pass --allow-mixed to print it with a note"
            )
        table = fill(name, spec, collections, task_titles=lambda task: load_task(task).title)
        if not any(cell.mean is not None or cell.text for row in table.rows for cell in row.cells):
            notes = sorted({cell.note for row in table.rows for cell in row.cells if cell.note} - {A_COLUMN_IS_MISSING})
            self.not_printed.setdefault(spec.title, "; ".join(notes[:2]) or "no row has a number")
            return
        title = spec.title + self._family(collections)
        caption = table_caption(table, collections, tasks, mixed=mixed)
        remarks = [*impossible_means(table), *(w for c in collections for w in warnings(c, tasks))]
        is_against_paper = False
        if self.compare == "paper" and spec.paper is not None:
            paper = published(spec.paper)
            compared = beside_paper(table, paper)
            if compared is None:
                self.not_printed.setdefault(f"{table.heading} against {paper.source}", "no method and column in common")
            else:
                table, is_against_paper = compared, True
                caption = f"{caption} {comparison_caption(paper, collections)}"
        self.sections.append(
            Section(
                anchor=name,
                title=title,
                caption=caption,
                warnings=tuple(dict.fromkeys(remarks)),
                table=table,
                is_against_paper=is_against_paper,
            )
        )

    def _add_figure(self, name: str, spec: FigureSpec | CurveSpec | HeatmapSpec, collection: Collection) -> None:
        figure: Figure | None
        if isinstance(spec, FigureSpec):
            figure, reason = metrics_figure(name, spec, collection), "no run logged any of its metrics"
        elif isinstance(spec, CurveSpec):
            figure, reason = curve_figure(name, spec, collection), "no result has sampled draws (evaluate with --maj)"
        else:
            figure = heatmap_figure(name, spec, collection)
            reason = f"it needs the samples of {spec.baseline} and of another method on at least {spec.bins} items"
        if figure is None:
            self.not_printed.setdefault(spec.title, reason)
            return
        title = spec.title + self._family((collection,))
        self.sections.append(Section(anchor=name, title=title, caption=figure.caption, figure=figure))

    def _family(self, collections: tuple[Collection, ...]) -> str:
        return f" ({collections[0].model})" if len(self.collections) > 1 and len(collections) == 1 else ""


def build_report(
    runs: Path,
    *,
    out: Path,
    formats: Sequence[str] = FORMATS,
    specs: Sequence[str] = (),
    compare: Literal["paper"] | None = None,
    allow_mixed: bool = False,
) -> Report:
    """Fill the named specs (all that ship, by default) from ``runs`` and write them into ``out``.

    ``md``: ``report.md`` with PNG figures; ``tex``: one file a table, PDF figures; ``html``: ``report.html``, one file
    for all; ``csv``: ``scores`` and ``curves`` as tidy CSV and Parquet. ``cells.csv``, always written, traces every
    printed number to the files it was read from.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"no report format {unknown[0] if unknown else ''!r}; there are {', '.join(FORMATS)}")
    loaded = {name: load_spec(name) for name in specs or printing_order()}  # a wrong spec is told before any reading
    builder = _Builder(collections=collect(runs), allow_mixed=allow_mixed, compare=compare)
    for name, spec in loaded.items():
        builder.add(name, spec)
    sections = builder.sections
    files: list[Path] = []
    if "html" in formats:
        page = render_page(sections, builder.collections, not_printed=builder.not_printed)
        files.append(_write(out / "report.html", page))
    if "md" in formats:
        files.append(_write(out / "report.md", _markdown(sections, builder.not_printed)))
    if {"md", "tex"} & set(formats):
        files += _draw(sections, out)
    if "tex" in formats:
        for section in sections:
            if section.table is not None:
                text = render_tex(section.table, caption=section.caption, warnings=section.warnings)
                files.append(_write(out / f"{section.anchor}.tex", text))
    if "csv" in formats:
        figures = [section.figure for section in sections if section.figure is not None]
        files += tidy.write_tables(out, scores=tidy.scores(builder.collections), curves=tidy.curves(figures))
    tables = [section.table for section in sections if section.table is not None]
    files.append(_write(out / "cells.csv", tidy.trace(tables, runs)))
    return Report(files=tuple(files), sections=tuple(sections), not_printed=builder.not_printed)


def printing_order() -> list[str]:
    """Specs that ship, the main results first, tables before figures."""
    rank = {name: index for index, name in enumerate(_FIRST)}

    def key(name: str) -> tuple[bool, int, str]:
        return not isinstance(load_spec(name), TableSpec), rank.get(name, len(rank)), name

    return sorted(spec_names(), key=key)


def _missing(spec: TableSpec, collection: Collection, tasks: Sequence[str]) -> str:
    """Why a table does not apply to these runs; empty when it does."""
    ran = collection.methods
    if spec.difference_to is not None and spec.difference_to not in ran:
        return f"{spec.difference_to} was not run"
    if spec.comparisons and not any(c.method in ran and c.minus in ran for c in spec.comparisons):
        return "none of its pairs of methods was run"
    named = [method for method in spec.methods if method in ran]
    if spec.only_named and len(named) < 2:
        return f"fewer than two of its methods were run ({', '.join(m for m in spec.methods if m not in ran)} missing)"
    if any(isinstance(column, AccuracyColumns) for column in spec.columns) and not tasks:
        return "none of its benchmarks was evaluated"
    return ""


def _markdown(sections: Sequence[Section], not_printed: dict[str, str]) -> str:
    parts = ["# agpo-bench report\n"]
    for section in sections:
        if section.table is not None:
            parts.append(render_markdown(section.table, caption=section.caption, warnings=section.warnings))
        elif section.figure is not None:
            parts.append(render_markdown_figure(section.figure, image=f"{section.anchor}.png"))
    if not_printed:
        reasons = "\n".join(f"- {title}, because {reason}." for title, reason in sorted(not_printed.items()))
        parts.append(f"## Not printed\n\n{reasons}\n")
    parts.append("Every number is traced to its files in [cells.csv](cells.csv).\n")
    return "\n".join(parts)


def _draw(sections: Sequence[Section], out: Path) -> list[Path]:
    figures = [(section.anchor, section.figure) for section in sections if section.figure is not None]
    if not figures:
        return []
    from agpo_bench.reporting.figures import draw  # matplotlib is slow to import

    out.mkdir(parents=True, exist_ok=True)
    return [file for anchor, figure in figures for file in draw(figure, out / anchor)]


def _write(path: Path, text: str) -> Path:
    write_whole(path, text)
    return path
