"""Our table minus a published one, and what differs in how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from agpo_bench import paths
from agpo_bench.reporting.collect import Collection
from agpo_bench.reporting.published import PublishedTable, read_published
from agpo_bench.reporting.tables import Cell, Table


def published(name: str) -> PublishedTable:
    """One of the tables in ``reports/paper/``."""
    return read_published(paths.definitions("reports") / "paper" / f"{name}.csv")


def minus_paper(table: Table, paper: PublishedTable) -> Table | None:
    """A column of differences for every column both have, a row for every method both have; None without any."""
    known = {column for row in paper.rows.values() for column in row}
    columns = [i for i, column in enumerate(table.columns) if column.task in known]
    rows = [
        replace(row, minus=None, cells=tuple(_difference(row.cells[i], paper, row.method, table, i) for i in columns))
        for row in table.rows
        if row.method in paper.rows and row.minus is None
    ]
    if not rows or not columns:
        return None
    return replace(
        table,
        name=f"{table.name}_minus_paper",
        title=f"{table.heading}: ours minus the paper",
        columns=tuple(replace(table.columns[i], better="neither", task=None) for i in columns),
        rows=tuple(rows),
    )


def _difference(cell: Cell, paper: PublishedTable, method: str, table: Table, index: int) -> Cell:
    column = table.columns[index].task
    text = paper.rows[method].get(column or "")
    if text is None or cell.value is None:
        return Cell(decimals=cell.decimals, note=cell.note or "not in the paper")
    return replace(cell, mark="", doubt="", baseline=Cell(per_seed=(Fraction(text),), decimals=cell.decimals))


def comparison_caption(table: Table, paper: PublishedTable, collections: Sequence[Collection]) -> str:
    """Source and every difference of setting in one paragraph."""
    collection = collections[0]
    results = [one.result for one in collection.evaluated.values()]
    runs = collection.runs
    ours = {
        "model": ", ".join(sorted({run.model for run in runs})) or collection.model,
        "data": ", ".join(sorted({result.data_source for result in results})),
        "budget": " or ".join(f"{budget:,}" for budget in sorted({run.budget for run in runs})),
        "decoding": "greedy",
    }
    told = [f"{key}: {theirs} there, {ours[key]} here" for key, theirs in paper.setting.items() if theirs != ours[key]]
    seeds = {len(collection.seeds(method)) for method in collection.methods}
    if seeds != {paper.seeds}:
        told.append(f"seeds: {paper.seeds} there, {' or '.join(map(str, sorted(seeds)))} here")
    items = {r.task: r.num_items for r in results}
    other = [
        f"{column} {'|'.join(map(str, counts))} there, {items[column]:,} here"
        for column, counts in paper.items.items()
        if column in items and items[column] not in counts
    ]
    if other:
        told.append("items: " + ", ".join(other))
    differs = f"What differs in setting: {'; '.join(told)}." if told else "No stated difference in setting."
    return f"{table.heading} ({paper.source}). Points, ours minus theirs, before rounding ours. {differs}"
