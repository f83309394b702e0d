"""What a filled table is: cells with exact means, their spread, marks and doubts. Deviations: float64, ddof 1."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from agpo_bench.reporting.rounding import round_half_up
from agpo_bench.reporting.significance import Interval, student_interval
from agpo_bench.reporting.spec import Better, TableSpec

Mark = Literal["best", "second", ""]
DASH = "–"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a filled table."""

    title: str
    group: str
    decimals: int
    better: Better
    task: str | None = None
    """The task whose greedy score the column prints; ``average`` for their mean."""
    beside: str = ""
    """Title of the column that this one compares with a published table; empty for any other column."""

    @property
    def own_title(self) -> str:
        """For a column of differences with the column that it belongs to."""
        return f"{self.beside} {self.title}" if self.beside else self.title

    @property
    def full_title(self) -> str:
        """With the group."""
        return f"{self.group}: {self.own_title}" if self.group else self.own_title


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table and where it comes from."""

    per_seed: tuple[Fraction, ...] = ()
    """One value a seed, unrounded (accuracies in percent); empty when there is nothing to print."""
    files: tuple[Path, ...] = ()
    decimals: int = 1
    text: str | None = None
    """Printed instead of a number."""
    num_items: int | None = None
    """Items scored 0/1 behind each value; None where the mean can be anything."""
    baseline: Cell | None = None
    """When set, the printed mean is this cell's minus the baseline's."""
    is_relative: bool = False
    """Print 100 (value / baseline - 1) instead of the difference."""
    spread: Literal["std", "ci95", "none"] = "none"
    mark: Mark = ""
    p_value: float | None = None
    """Of the difference to ``baseline``, adjusted by Holm over the table."""
    stars: str = ""
    doubt: str = ""
    """Why a claim this cell makes (best of its column, a starred difference) is not safe."""
    note: str = ""
    """Why the cell is empty."""

    @property
    def value(self) -> Fraction | None:
        """Exact mean over seeds."""
        return sum(self.per_seed, Fraction(0)) / len(self.per_seed) if self.per_seed else None

    @property
    def mean(self) -> Fraction | None:
        """What is printed, unrounded: the mean, less the baseline's."""
        if self.value is None or self.baseline is None:
            return self.value
        if self.baseline.value is None or (self.is_relative and not self.baseline.value):
            return None
        if self.is_relative:
            return 100 * (self.value / self.baseline.value - 1)
        return self.value - self.baseline.value

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds (ddof 1); None for fewer than two."""
        return statistics.stdev(map(float, self.per_seed)) if len(self.per_seed) > 1 else None

    @property
    def interval(self) -> Interval | None:
        """Student-t 95 % interval of the mean over seeds; None for fewer than two."""
        return student_interval([float(value) for value in self.per_seed])

    @property
    def all_files(self) -> tuple[Path, ...]:
        """Files of both sides of a difference."""
        return self.files + (self.baseline.files if self.baseline else ())

    def printed_mean(self) -> str:
        """The mean at printed precision, or a dash."""
        if self.text is not None:
            return self.text
        if self.mean is None:
            return DASH
        text = round_half_up(self.mean, self.decimals)
        return f"+{text}" if self.baseline is not None and Fraction(text) > 0 else text

    def printed_spread(self) -> str:
        """The deviation or the interval's half-width at printed precision, or nothing; a difference has none."""
        if self.baseline is not None or self.mean is None:
            return ""
        if self.spread == "std" and self.std is not None:
            return round_half_up(self.std, self.decimals)
        if self.spread == "ci95" and self.interval is not None:
            return round_half_up((self.interval.high - self.interval.low) / 2, self.decimals)
        return ""

    def printed_marks(self) -> str:
        """Stars, and the dagger of the reason why a claim is not safe."""
        return self.stars + self.doubt[:1]

    def printed(self) -> str:
        """All of it as plain text."""
        spread = self.printed_spread()
        return self.printed_mean() + (f" ± {spread}" if spread else "") + self.printed_marks()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method, or one method minus another."""

    method: str
    minus: str | None = None
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
    title: str = ""
    """Overrides the spec's."""

    @property
    def heading(self) -> str:
        """The title to print."""
        return self.title or self.spec.title

    @property
    def has_marks(self) -> bool:
        """Whether any cell is marked best."""
        return any(cell.mark for row in self.rows for cell in row.cells)

    @property
    def has_spread(self) -> bool:
        """Whether any cell prints one."""
        return any(cell.printed_spread() for row in self.rows for cell in row.cells)

    @property
    def doubts(self) -> list[str]:
        """Reasons behind the daggers."""
        return sorted({cell.doubt for row in self.rows for cell in row.cells if cell.doubt})
