"""Build a report: every spec in ``reports/`` filled from the files of finished runs."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agpo_bench.data.benchmarks import load_task
from agpo_bench.files import write_whole
from agpo_bench.reporting.captions import table_caption, training_sentences
from agpo_bench.reporting.collect import Collection, collect
from agpo_bench.reporting.render import render_markdown, render_tex
from agpo_bench.reporting.spec import AccuracyColumns, FigureSpec, TableSpec, load_spec, spec_names
from agpo_bench.reporting.tables import Table, fill
from agpo_bench.reporting.validators import warnings

FORMATS = ("md", "tex")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written, and the first table for the screen."""

    files: tuple[Path, ...]
    tables: tuple[Table, ...]
    captions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def main_file(self) -> Path:
        """The file to open first."""
        return self.files[0]


def build_report(runs: Path, *, out: Path, formats: Sequence[str] = ("md", "tex"), specs: Sequence[str] = ()) -> Report:
    """Fill the named specs (all by default) from ``runs`` and write them into ``out``.

    ``report.md`` holds all tables and figures; each table also has a ``.tex`` file, and ``cells.csv`` traces every
    printed number to the files it was read from.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ValueError(f"no report format {unknown[0]!r}; there are {', '.join(FORMATS)}")
    collection = collect(runs)
    out.mkdir(parents=True, exist_ok=True)
    sections: list[str] = []
    files: list[Path] = []
    tables: list[tuple[Table, str]] = []
    all_warnings: list[str] = []
    for name in specs or _printing_order():
        spec = load_spec(name)
        stem = Path(name).stem
        if isinstance(spec, FigureSpec):
            drawn = _draw(spec, collection, out / stem)
            files += drawn
            if drawn:
                sections.append(f"## {spec.title}\n\n![{spec.title}]({drawn[0].name})\n")
            continue
        if not _applies(spec, collection):
            continue
        table = fill(stem, spec, collection, task_titles=_task_title)
        if not table.rows:
            continue
        tasks = [t for column in spec.columns if isinstance(column, AccuracyColumns) for t in column.tasks]
        present = [task for task in tasks if any(key[2] == task for key in collection.evaluated)]
        caption = table_caption(spec, collection, present)
        remarks = warnings(collection, present)
        all_warnings += [remark for remark in remarks if remark not in all_warnings]
        sections.append(render_markdown(table, caption=caption, warnings=remarks))
        tables.append((table, caption))
        if "tex" in formats:
            files.append(_write(out / f"{stem}.tex", render_tex(table, caption=caption, warnings=remarks)))
    if "md" in formats:
        text = "# agpo-bench report\n\n" + "\n".join(sections)
        text += "\nEvery number is traced to its files in [cells.csv](cells.csv).\n"
        files.insert(0, _write(out / "report.md", text))
    files.append(_write(out / "cells.csv", _trace([table for table, _ in tables], collection)))
    return Report(
        files=tuple(files),
        tables=tuple(table for table, _ in tables),
        captions=tuple(caption for _, caption in tables),
        warnings=tuple(all_warnings),
    )


def _printing_order() -> list[str]:
    names = spec_names()
    return sorted(names, key=lambda name: (name != "main_results", isinstance(load_spec(name), FigureSpec), name))


def _applies(spec: TableSpec, collection: Collection) -> bool:
    """A table of differences needs its baseline; a table of named methods needs two of them."""
    ran = collection.methods
    if spec.difference_to is not None and spec.difference_to not in ran:
        return False
    return not spec.only_named or sum(method in ran for method in spec.methods) > 1


def _task_title(task: str) -> str:
    return load_task(task).title


def _draw(spec: FigureSpec, collection: Collection, out: Path) -> list[Path]:
    from agpo_bench.reporting.figures import draw  # matplotlib is slow to import

    sources = sorted({one.result.data_source for one in collection.evaluated.values()})
    caption = " ".join([f"Data: {', '.join(sources)}.", *training_sentences(collection)])
    return draw(spec, collection, caption=caption, out=out)


def _trace(tables: Sequence[Table], collection: Collection) -> str:
    """CSV: table, row, column, printed, exact mean, per-seed values, files."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["table", "method", "seeds", "column", "printed", "mean", "per_seed", "files", "note"])
    relative: Callable[[Path], str] = lambda path: os.path.relpath(path, collection.root)  # noqa: E731
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                writer.writerow(
                    [
                        table.name,
                        row.method,
                        " ".join(map(str, row.seeds)),
                        column.title,
                        cell.printed_mean() + (f" ± {cell.printed_std()}" if cell.printed_std() else ""),
                        "" if cell.mean is None else repr(float(cell.mean)),
                        json.dumps([float(value) for value in cell.per_seed]),
                        " ".join(relative(path) for path in cell.files),
                        cell.note,
                    ]
                )
    return buffer.getvalue()


def _write(path: Path, text: str) -> Path:
    write_whole(path, text)
    return path
