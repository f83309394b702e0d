"""Our table beside a published one, and what differs in how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from agpo_bench import paths
from agpo_bench.reporting.collect import Collection
from agpo_bench.reporting.published import PublishedTable, read_published
from agpo_bench.reporting.tables import Cell, Column, Row, Table


def published(name: str) -> PublishedTable:
    """One of the tables in ``reports/paper/``."""
    return read_published(paths.definitions("reports") / "paper" / f"{name}.csv")


def beside_paper(table: Table, paper: PublishedTable) -> Table | None:
    """The table with a column of differences after every column that both have; None without a cell in common."""
    known = {column for row in paper.rows.values() for column in row}
    common = [column.task is not None and column.task in known for column in table.columns]
    if not any(common) or not any(row.method in paper.rows and row.minus is None for row in table.rows):
        return None
    columns = [
        one
        for column, has_theirs in zip(table.columns, common, strict=True)
        for one in (column, *([_beside(column)] if has_theirs else []))
    ]
    rows = [
        replace(
            row,
            cells=tuple(
                cell
                for index, has_theirs in enumerate(common)
                for cell in (row.cells[index], *([_difference(row, paper, table, index)] if has_theirs else []))
            ),
        )
        for row in table.rows
    ]
    return replace(table, columns=tuple(columns), rows=tuple(rows))


def _beside(column: Column) -> Column:
    return replace(column, title="− paper", better="neither", task=None, beside=column.title)


def _difference(row: Row, paper: PublishedTable, table: Table, index: int) -> Cell:
    cell, column = row.cells[index], table.columns[index].task
    text = paper.rows[row.method].get(column or "") if row.method in paper.rows and row.minus is None else None
    if text is None or cell.value is None:
        return Cell(decimals=cell.decimals, note=cell.note or "not in the paper")
    return replace(cell, mark="", doubt="", baseline=Cell(per_seed=(Fraction(text),), decimals=cell.decimals))


def comparison_caption(paper: PublishedTable, collections: Sequence[Collection]) -> str:
    """What the columns of differences are, and every difference of setting."""
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
    return f"− paper: points, ours minus {paper.source}, before rounding ours. {differs}"
