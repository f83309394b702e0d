"""Fill a table's cells from collected results. Means are exact fractions of the recomputed item scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from agpo_bench import paths
from agpo_bench.data.benchmarks import load_task
from agpo_bench.reporting.claims import marked, starred
from agpo_bench.reporting.collect import Collection, Evaluated
from agpo_bench.reporting.run_statistics import common_target, run_statistic
from agpo_bench.reporting.spec import (
    AccuracyColumns,
    AverageColumn,
    FamilyColumns,
    RecipeColumn,
    RunColumn,
    TableSpec,
)
from agpo_bench.reporting.tables import Cell, Column, Row, Table

Titles = Callable[[str], str]
A_COLUMN_IS_MISSING = "a column is missing"


@dataclass(frozen=True, kw_only=True)
class _ColumnPlan:
    column: Column
    cell: Callable[[str], Cell]
    """The cell of a method."""
    minus: str | None = None
    tasks: tuple[tuple[Collection, str], ...] = ()
    """Whose items a paired test may use."""
    is_accuracy: bool = False


def fill(name: str, spec: TableSpec, collections: Sequence[Collection], *, task_titles: Titles) -> Table:
    """Compute every cell of ``spec``. All but ``families`` columns read the first collection."""
    plans = _plan(spec, collections, task_titles)
    rows = [_row(spec, plans, collections, method, minus) for method, minus in _row_methods(spec, collections)]
    columns = tuple(plan.column for plan in plans)
    rows = starred(spec.test, rows, [plan.tasks for plan in plans])
    return Table(name=name, spec=spec, columns=columns, rows=tuple(marked(rows, columns)))


def accuracy_percent(evaluated: Evaluated) -> Fraction:
    """Mean greedy score in percent, exact: infrastructure failures leave numerator and denominator."""
    return _percent(evaluated.result.score_sum) / (evaluated.result.num_items - evaluated.result.error_count)


def _percent(value: float) -> Fraction:
    # A pass rate is a float; limit_denominator undoes the binary expansion of sums of k/n.
    return 100 * Fraction(value).limit_denominator(10**9)


def _row_methods(spec: TableSpec, collections: Sequence[Collection]) -> list[tuple[str, str | None]]:
    ran = sorted({method for collection in collections for method in collection.methods})
    if spec.comparisons:
        return [(c.method, c.minus) for c in spec.comparisons if c.method in ran and c.minus in ran]
    named = [method for method in spec.methods if method in ran]
    others = [] if spec.only_named else [method for method in ran if method not in spec.methods]
    has_initial = any(method == paths.INITIAL_MODEL for method, _, _ in collections[0].evaluated)
    initial = [paths.INITIAL_MODEL] if spec.initial_row and has_initial and not spec.difference_to else []
    baseline = spec.difference_to
    if baseline is not None and baseline not in ran:
        return []
    return [(method, baseline) for method in initial + named + others if method != baseline]


def _row(
    spec: TableSpec, plans: Sequence[_ColumnPlan], collections: Sequence[Collection], method: str, minus: str | None
) -> Row:
    cells = []
    for plan in plans:
        cell = replace(plan.cell(method), spread=spec.spread)
        other = minus or plan.minus
        if other is not None and cell.text is None:
            base = plan.cell(other)
            kept = replace(cell, baseline=base, is_relative=spec.relative)
            cell = kept if base.value is not None else Cell(note="nothing to compare with")
        cells.append(cell)
    title = collections[0].title(method)
    if spec.comparisons and minus is not None:
        title = f"{title} − {collections[0].title(minus)}"
    seeds = {seed for collection in collections for seed in collection.seeds(method)}
    return Row(method=method, minus=minus, title=title, seeds=tuple(sorted(seeds)), cells=tuple(cells))


def _plan(spec: TableSpec, collections: Sequence[Collection], titles: Titles) -> list[_ColumnPlan]:
    first = collections[0]
    plans: list[_ColumnPlan] = []
    for part in spec.columns:
        match part:
            case AccuracyColumns():
                plans += [_accuracy_plan(spec, first, part, task, titles) for task in part.tasks]
            case FamilyColumns():
                plans += [_family_plan(spec, collection, part.task, titles) for collection in collections]
            case AverageColumn():
                plans.append(_average_plan(spec, part, plans, first))
            case RunColumn():
                plans.append(_run_plan(spec, first, part))
            case RecipeColumn():
                column = Column(title=part.title, group="", decimals=0, better="neither")
                plans.append(_ColumnPlan(column=column, cell=_recipe_cell(first, part)))
    return plans


def _accuracy_plan(
    spec: TableSpec, collection: Collection, part: AccuracyColumns, task: str, titles: Titles
) -> _ColumnPlan:
    return _ColumnPlan(
        column=Column(
            title=titles(task),
            group=part.group,
            decimals=spec.decimals,
            better="neither" if part.minus else "higher",
            task=task if part.measure == "greedy" and not part.minus else None,
        ),
        cell=lambda method: _score(collection, method, task, spec, part),
        minus=part.minus,
        tasks=((collection, task),) if part.measure == "greedy" else (),
        is_accuracy=True,
    )


def _family_plan(spec: TableSpec, collection: Collection, task: str, titles: Titles) -> _ColumnPlan:
    part = AccuracyColumns(use="accuracy", group=titles(task), tasks=(task,))
    return _ColumnPlan(
        column=Column(title=collection.model, group=titles(task), decimals=spec.decimals, better="higher"),
        cell=lambda method: _score(collection, method, task, spec, part),
        is_accuracy=True,
    )


def _average_plan(
    spec: TableSpec, part: AverageColumn, plans: Sequence[_ColumnPlan], collection: Collection
) -> _ColumnPlan:
    tasks: list[str] = []
    if any(isinstance(other, FamilyColumns) for other in spec.columns):
        cells = [plan.cell for plan in plans if plan.is_accuracy]
    else:
        shown = (
            task
            for other in spec.columns
            if isinstance(other, AccuracyColumns)
            if (other.measure, other.k, other.minus) == (part.measure, part.k, None)
            for task in other.tasks
        )
        tasks = list(part.tasks or shown)
        score = AccuracyColumns(use="accuracy", group="", tasks=tuple(tasks), measure=part.measure, k=part.k)
        cells = [_accuracy_plan(spec, collection, score, task, str).cell for task in tasks]
    return _ColumnPlan(
        column=Column(
            title=part.title,
            group="",
            decimals=spec.decimals,
            better="neither" if part.minus else "higher",
            task="average" if part.measure == "greedy" and not part.minus else None,
        ),
        cell=lambda method: _average([cell(method) for cell in cells], spec.decimals),
        minus=part.minus,
        tasks=tuple((collection, task) for task in tasks) if part.measure == "greedy" else (),
    )


def _score(collection: Collection, method: str, task: str, spec: TableSpec, part: AccuracyColumns) -> Cell:
    seeds: list[int | None] = [None] if method == paths.INITIAL_MODEL else [*collection.seeds(method)]
    found = [collection.evaluated.get((method, seed, task)) for seed in seeds]
    missing = [str(seed) for seed, one in zip(seeds, found, strict=True) if one is None]
    present = [one for one in found if one is not None]
    if not present or missing:
        note = f"not evaluated for seed {', '.join(missing)}" if present else "not evaluated"
        return Cell(decimals=spec.decimals, note=note)
    if any(one.problem for one in present):
        return Cell(decimals=spec.decimals, note="; ".join(sorted({one.problem for one in present if one.problem})))
    values = [_measured(one, part) for one in present]
    if any(value is None for value in values):
        asked = part.measure + (f"@{part.k}" if part.k else "")
        return Cell(decimals=spec.decimals, note=f"no {asked}: too few sampled draws, or answers without a vote")
    is_binary = part.measure == "greedy" and load_task(task).grader.kind != "program"
    return Cell(
        per_seed=tuple(value for value in values if value is not None),
        files=tuple(one.file for one in present),
        decimals=spec.decimals,
        num_items=present[0].result.num_items if is_binary else None,
    )


def _measured(one: Evaluated, part: AccuracyColumns) -> Fraction | None:
    match part.measure:
        case "greedy":
            return accuracy_percent(one)
        case "avg":
            value = one.result.avg_sampled
        case "maj":
            value = one.result.maj.get(part.k or 0)
        case "pass":
            value = one.scores.pass_at(part.k or 0) if one.scores is not None else one.result.pass_at.get(part.k or 0)
    return None if value is None else _percent(value)


def _average(parts: Sequence[Cell], decimals: int) -> Cell:
    if not parts or any(not cell.per_seed for cell in parts):
        return Cell(decimals=decimals, note=A_COLUMN_IS_MISSING)
    if len({len(cell.per_seed) for cell in parts}) > 1:
        return Cell(decimals=decimals, note="the columns have different numbers of seeds")
    per_seed = tuple(sum(values, Fraction(0)) / len(parts) for values in zip(*(c.per_seed for c in parts), strict=True))
    return Cell(per_seed=per_seed, files=tuple(f for c in parts for f in c.files), decimals=decimals)


def _run_plan(spec: TableSpec, collection: Collection, part: RunColumn) -> _ColumnPlan:
    methods = [method for method, _ in _row_methods(spec, [collection])]
    runs = [run for run in collection.runs if run.method in methods and run.is_finished]
    target = common_target(runs, part.metric) if part.target == "common" and part.metric else part.target
    title = part.title
    if part.target == "common" and isinstance(target, float):
        title = f"{title} ({100 * target:.1f} %)"

    def cell(method: str) -> Cell:
        filled = _run_cell(collection, method, part, target if isinstance(target, float) else None)
        if part.normalise_to is None or filled.value is None:
            return filled
        base = _run_cell(collection, part.normalise_to, part, None).value
        if not base:
            return Cell(
                decimals=part.decimals, note=f"{collection.title(part.normalise_to)} gives nothing to divide by"
            )
        return replace(filled, per_seed=tuple(value / base for value in filled.per_seed))

    return _ColumnPlan(column=Column(title=title, group="", decimals=part.decimals, better=part.better), cell=cell)


def _run_cell(collection: Collection, method: str, part: RunColumn, target: float | None) -> Cell:
    runs = collection.runs_of(method)
    if not runs:
        return Cell(decimals=part.decimals, note="not trained")
    unfinished = [str(run.seed) for run in runs if not run.is_finished]
    if unfinished:
        return Cell(decimals=part.decimals, note=f"not finished for seed {', '.join(unfinished)}")
    found = [run_statistic(part, run, target=target) for run in runs]
    kept = [one for one in found if one is not None and math.isfinite(one.value)]
    if len(kept) < len(found):
        if part.target is not None and target is not None:
            return Cell(
                text="not reached",
                note=f"{len(found) - len(kept)} of {len(found)} seeds never reach it",
                files=tuple(run.directory / paths.TIMING_FILE for run in runs),
            )
        return Cell(decimals=part.decimals, note="not defined for these runs")
    return Cell(
        per_seed=tuple(Fraction(one.value) for one in kept),
        files=tuple(one.file for one in kept),
        decimals=part.decimals,
    )


def _recipe_cell(collection: Collection, part: RecipeColumn) -> Callable[[str], Cell]:
    def cell(method: str) -> Cell:
        runs = collection.runs_of(method)
        if not runs:
            return Cell(note="no recipe")
        value: Any = runs[0].recipe
        for name in part.field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        files = tuple(run.directory / paths.RECIPE_FILE for run in runs)
        if part.equals is not None:
            return Cell(text="yes" if str(value) == part.equals else "no", files=files)
        return Cell(text="–" if value is None else str(value), files=files)

    return cell
