"""Fill a table's cells from collected results. Means are exact fractions; deviations are float64 with ddof 1."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

from agpo_bench import paths
from agpo_bench.reporting.collect import Collection, Evaluated
from agpo_bench.reporting.rounding import round_half_up
from agpo_bench.reporting.run_statistics import run_statistic
from agpo_bench.reporting.spec import AccuracyColumns, AverageColumn, RunColumn, TableSpec

Mark = Literal["best", "second", ""]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a filled table."""

    title: str
    group: str
    decimals: int
    better: Literal["higher", "lower", "neither"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table and where it comes from."""

    per_seed: tuple[Fraction, ...]
    """One value a seed, unrounded (accuracies in percent); empty when there is nothing to print."""
    files: tuple[Path, ...]
    decimals: int
    mark: Mark = ""
    difference_to: Fraction | None = None
    """When set, the printed mean is the row's mean minus this."""
    note: str = ""
    """Why the cell is empty."""

    @property
    def mean(self) -> Fraction | None:
        """Exact mean over seeds, less ``difference_to``."""
        if not self.per_seed:
            return None
        return sum(self.per_seed, Fraction(0)) / len(self.per_seed) - (self.difference_to or 0)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds (ddof 1); None for fewer than two."""
        return statistics.stdev(map(float, self.per_seed)) if len(self.per_seed) > 1 else None

    def printed_mean(self) -> str:
        """The mean at printed precision, or a dash."""
        if self.mean is None:
            return "–"
        text = round_half_up(self.mean, self.decimals)
        return f"+{text}" if self.difference_to is not None and self.mean > 0 and float(text) > 0 else text

    def printed_std(self) -> str:
        """The deviation at printed precision, or nothing."""
        return "" if self.std is None else round_half_up(self.std, self.decimals)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method."""

    method: str
    title: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A filled table, ready for a template."""

    name: str
    spec: TableSpec
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def fill(name: str, spec: TableSpec, collection: Collection, *, task_titles: Callable[[str], str]) -> Table:
    """Compute every cell of ``spec`` from ``collection``."""
    columns = _columns(spec, task_titles)
    rows = [_row(spec, collection, method) for method in _row_methods(spec, collection)]
    if spec.difference_to is not None:
        rows = _differences(rows, spec.difference_to)
    return Table(name=name, spec=spec, columns=columns, rows=tuple(_marked(rows, columns)))


def _columns(spec: TableSpec, task_titles: Callable[[str], str]) -> tuple[Column, ...]:
    columns: list[Column] = []
    for part in spec.columns:
        match part:
            case AccuracyColumns():
                columns += [
                    Column(title=task_titles(task), group=part.group, decimals=spec.decimals, better="higher")
                    for task in part.tasks
                ]
            case AverageColumn():
                columns.append(Column(title=part.title, group="", decimals=spec.decimals, better="higher"))
            case RunColumn():
                columns.append(Column(title=part.title, group="", decimals=part.decimals, better=part.better))
    return tuple(columns)


def _row_methods(spec: TableSpec, collection: Collection) -> list[str]:
    ran = collection.methods
    named = [method for method in spec.methods if method in ran]
    others = [] if spec.only_named else [method for method in ran if method not in spec.methods]
    has_initial = any(method == paths.INITIAL_MODEL for method, _, _ in collection.evaluated)
    initial = [paths.INITIAL_MODEL] if spec.initial_row and has_initial else []
    return initial + named + others


def _row(spec: TableSpec, collection: Collection, method: str) -> Row:
    seeds: list[int | None] = [None] if method == paths.INITIAL_MODEL else list(collection.seeds(method))
    cells: list[Cell] = []
    for part in spec.columns:
        match part:
            case AccuracyColumns():
                cells += [_accuracy(collection, method, seeds, task, spec.decimals) for task in part.tasks]
            case AverageColumn():
                tasks = [task for other in spec.columns if isinstance(other, AccuracyColumns) for task in other.tasks]
                cells.append(_average(collection, method, seeds, tasks, spec.decimals))
            case RunColumn():
                cells.append(_of_runs(collection, method, part))
    known_seeds = tuple(seed for seed in seeds if seed is not None)
    return Row(method=method, title=collection.title(method), seeds=known_seeds, cells=tuple(cells))


def accuracy_percent(evaluated: Evaluated) -> Fraction:
    """Mean score in percent, exact: infrastructure failures leave numerator and denominator."""
    result = evaluated.result
    scored = result.num_items - result.error_count
    # A pass rate is a float; limit_denominator undoes the binary expansion of sums of k/n.
    return 100 * Fraction(result.score_sum).limit_denominator(10**9) / scored


def _usable(evaluated: Evaluated | None) -> bool:
    return evaluated is not None and evaluated.result.is_complete and evaluated.result.accuracy is not None


def _accuracy(collection: Collection, method: str, seeds: Sequence[int | None], task: str, decimals: int) -> Cell:
    found = [collection.evaluated.get((method, seed, task)) for seed in seeds]
    if not found or not all(_usable(one) for one in found):
        missing = [str(seed) for seed, one in zip(seeds, found, strict=True) if not _usable(one)]
        note = "not evaluated" if len(missing) == len(seeds) else f"incomplete for seed {', '.join(missing)}"
        return Cell(per_seed=(), files=(), decimals=decimals, note=note)
    present = [one for one in found if one is not None]
    return Cell(
        per_seed=tuple(accuracy_percent(one) for one in present),
        files=tuple(one.file for one in present),
        decimals=decimals,
    )


def _average(
    collection: Collection, method: str, seeds: Sequence[int | None], tasks: Sequence[str], decimals: int
) -> Cell:
    parts = [_accuracy(collection, method, seeds, task, decimals) for task in tasks]
    if not parts or any(not cell.per_seed for cell in parts):
        return Cell(per_seed=(), files=(), decimals=decimals, note="a column is missing")
    per_seed = tuple(sum(values, Fraction(0)) / len(parts) for values in zip(*(c.per_seed for c in parts), strict=True))
    return Cell(per_seed=per_seed, files=tuple(f for c in parts for f in c.files), decimals=decimals)


def _of_runs(collection: Collection, method: str, column: RunColumn) -> Cell:
    values: list[Fraction] = []
    files: list[Path] = []
    for run in collection.runs:
        if run.method != method:
            continue
        statistic = run_statistic(column.statistic, run)
        if statistic is None or not math.isfinite(statistic.value):
            return Cell(per_seed=(), files=(), decimals=column.decimals, note="not defined for these runs")
        values.append(Fraction(statistic.value))
        files.append(statistic.file)
    return Cell(per_seed=tuple(values), files=tuple(files), decimals=column.decimals)


def _differences(rows: Sequence[Row], baseline: str) -> list[Row]:
    base = next((row for row in rows if row.method == baseline), None)
    if base is None:
        return []
    return [
        replace(
            row,
            cells=tuple(
                replace(cell, difference_to=other.mean)
                if other.mean is not None
                else Cell(per_seed=(), files=(), decimals=cell.decimals, note="nothing to compare with")
                for cell, other in zip(row.cells, base.cells, strict=True)
            ),
        )
        for row in rows
        if row.method != baseline
    ]


def _marked(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Mark best and second best of each column at printed precision; ties share a mark, two firsts leave no second."""
    marks: list[list[Mark]] = [["" for _ in columns] for _ in rows]
    for index, column in enumerate(columns):
        if column.better == "neither":
            continue
        printed = [
            round_half_up(row.cells[index].mean or 0, column.decimals) if row.cells[index].mean is not None else None
            for row in rows
        ]
        ranked = sorted((float(text) for text in printed if text is not None), reverse=column.better == "higher")
        if len(set(ranked)) < 2:
            continue
        for row_index, text in enumerate(printed):
            if text is not None and float(text) in ranked[:2]:
                marks[row_index][index] = "best" if float(text) == ranked[0] else "second"
    return [
        replace(row, cells=tuple(replace(cell, mark=mark) for cell, mark in zip(row.cells, row_marks, strict=True)))
        for row, row_marks in zip(rows, marks, strict=True)
    ]
