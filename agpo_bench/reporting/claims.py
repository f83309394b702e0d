"""What a table claims, and how far it can be trusted: best and second best, stars, daggers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np

from agpo_bench.paths import INITIAL_MODEL
from agpo_bench.reporting.collect import Collection
from agpo_bench.reporting.rounding import round_half_up
from agpo_bench.reporting.significance import holm, mcnemar, paired_bootstrap, stars, welch
from agpo_bench.reporting.tables import Cell, Column, Mark, Row

MIN_SEEDS = 3
BOOTSTRAP_SEED = 20_240
FEW_SEEDS = f"‡ The claim rests on fewer than {MIN_SEEDS} seeds."
OVERLAP = "† Best by its mean only: the 95 % intervals over seeds overlap with another row's."
NO_GAIN = "§ Best of the methods, and no better than the initial model."


def marked(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Mark best and second best of each column at printed precision; ties share a mark, two firsts leave no second.

    Differences are not ranked: their rows may have different baselines. Neither is the initial model: it is what the
    methods are compared from, printed in some tables and not in others. A best that does not pass it says so.
    """
    ranks = [row.method != INITIAL_MODEL for row in rows]
    marks: list[list[Mark]] = [["" for _ in columns] for _ in rows]
    doubts: list[list[str]] = [[cell.doubt for cell in row.cells] for row in rows]
    for index, column in enumerate(columns):
        cells = [row.cells[index] for row in rows]
        if column.better == "neither" or any(cell.baseline is not None for cell in cells):
            continue
        exact = [None if c.mean is None else Fraction(round_half_up(c.mean, column.decimals)) for c in cells]
        printed = [value if is_ranked else None for value, is_ranked in zip(exact, ranks, strict=True)]
        initial = [value for value, is_ranked in zip(exact, ranks, strict=True) if value is not None and not is_ranked]
        ranked = sorted((value for value in printed if value is not None), reverse=column.better == "higher")
        if len(set(ranked)) < 2:
            continue
        for row_index, value in enumerate(printed):
            if value is not None and value in ranked[:2]:
                marks[row_index][index] = "best" if value == ranked[0] else "second"
        others = [cell for cell, value in zip(cells, printed, strict=True) if value not in (None, ranked[0])]
        has_gained = all(ranked[0] > value if column.better == "higher" else ranked[0] < value for value in initial)
        for row_index, value in enumerate(printed):
            if value == ranked[0]:
                doubts[row_index][index] = _doubt(cells[row_index], others, has_gained=has_gained)
    return [
        replace(
            row,
            cells=tuple(
                replace(cell, mark=mark, doubt=doubt)
                for cell, mark, doubt in zip(row.cells, row_marks, row_doubts, strict=True)
            ),
        )
        for row, row_marks, row_doubts in zip(rows, marks, doubts, strict=True)
    ]


def _doubt(best: Cell, others: Sequence[Cell], *, has_gained: bool) -> str:
    if len(best.per_seed) < MIN_SEEDS:
        return FEW_SEEDS
    if not has_gained:
        return NO_GAIN
    low, high = _bounds(best)
    return OVERLAP if any(_bounds(other)[0] <= high and low <= _bounds(other)[1] for other in others) else ""


def _bounds(cell: Cell) -> tuple[float, float]:
    interval = cell.interval
    if interval is None:  # one value: a point
        return float(cell.value or 0), float(cell.value or 0)
    return interval.low, interval.high


def starred(
    test: Literal["none", "seeds", "items"], rows: Sequence[Row], tasks: Sequence[Sequence[tuple[Collection, str]]]
) -> list[Row]:
    """Star every difference whose p-value, adjusted by Holm over all tested cells of the table, is small."""
    if test == "none":
        return list(rows)
    tested: dict[tuple[int, int], float] = {}
    for i, row in enumerate(rows):
        for j, (cell, behind) in enumerate(zip(row.cells, tasks, strict=True)):
            if cell.baseline is None or cell.mean is None:
                continue
            p_value = _across_seeds(cell) if test == "seeds" else _across_items(row, behind)
            if p_value is not None:
                tested[i, j] = p_value
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return [
        replace(row, cells=tuple(_with_p(cell, adjusted.get((i, j)), test) for j, cell in enumerate(row.cells)))
        for i, row in enumerate(rows)
    ]


def _with_p(cell: Cell, p_value: float | None, test: str) -> Cell:
    if p_value is None:
        return cell
    found = stars(p_value)
    seeds = min(len(cell.per_seed), len(cell.baseline.per_seed) if cell.baseline else 0)
    return replace(cell, p_value=p_value, stars=found, doubt=FEW_SEEDS if found and seeds < MIN_SEEDS else "")


def _across_seeds(cell: Cell) -> float | None:
    assert cell.baseline is not None
    found = welch([float(v) for v in cell.per_seed], [float(v) for v in cell.baseline.per_seed])
    return None if found is None else found.p_value


def _across_items(row: Row, behind: Sequence[tuple[Collection, str]]) -> float | None:
    """McNemar where each side has one run of 0/1 scores on one task, else the bootstrap over items of seeds' means."""
    if not behind or row.minus is None:
        return None
    strata = []
    for collection, task in behind:
        first, second = item_means(collection, row.method, task), item_means(collection, row.minus, task)
        common = sorted(first.keys() & second.keys()) if first and second else []
        if not first or not second or not common:
            return None
        strata.append(([first[item] for item in common], [second[item] for item in common]))
    (a, b), *others = strata
    if not others and {*a, *b} <= {0.0, 1.0}:
        return mcnemar(a, b)
    return paired_bootstrap(strata, generator=np.random.default_rng(BOOTSTRAP_SEED)).p_value


def item_means(collection: Collection, method: str, task: str) -> dict[int, float] | None:
    """Greedy score of each item, mean over seeds; items that failed for some seed are left out."""
    found = [one for (name, _, t), one in collection.evaluated.items() if (name, t) == (method, task)]
    scores = [one.scores for one in found if one.scores is not None and not one.problem]
    if not found or len(scores) < len(found):
        return None
    by_item: dict[int, list[float]] = {}
    for one in scores:
        for item, score in zip(one.doc_id_I[one.graded], one.greedy_I[one.graded], strict=True):
            by_item.setdefault(int(item), []).append(float(score))
    return {item: sum(values) / len(values) for item, values in by_item.items() if len(values) == len(scores)}
