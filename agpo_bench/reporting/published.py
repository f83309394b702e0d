"""Check a published table: can its means come from its items and seeds, and do its averages add up?

The file is CSV: a header ``method,<column>,…``, an optional row ``items`` with the number of 0/1 items behind each
column (``32|220`` where the item set is not stated; empty where the score is not 0/1), then one row a method. Lines
``# key: value`` may stand above: ``source``, ``seeds`` (none: item counts are not checked), ``model``, ``data``,
``budget``, ``decoding`` (the setting), and ``average of`` (the columns a column ``average`` is the mean of; all others
by default). A column ``average`` is compared with that mean, as far as rounding lets it be known.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from agpo_bench.reporting.significance import grim

PUBLIC_ITEMS: Mapping[str, str] = {
    "gsm8k": "1319",
    "math": "5000",
    "ocw": "272",
    "sat": "32|220",
    "mmlu_stem": "3018|321",
    "cmath": "1098",
    "gaokao_cloze": "118",
    "gaokao_qa": "351",
}
"""Items of the public test sets scored 0/1, for files without an ``items`` row (SAT: the 32 of May 2023 or AGIEval's
220; MMLU_STEM: test or validation). CodeContests may be scored by pass rate, which any mean can be."""

SETTING = ("model", "data", "budget", "decoding")


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Published numbers as printed."""

    name: str
    source: str
    seeds: int
    setting: Mapping[str, str]
    """What the file says of model, data, budget and decoding."""
    average_of: tuple[str, ...] | None
    items: Mapping[str, tuple[int, ...]]
    """Possible item counts of each column; a column without a count is not checked."""
    rows: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One cell that cannot be right as described."""

    method: str
    column: str
    printed: str
    explanation: str


def read_published(path: Path) -> PublishedTable:
    """Read a table; a cell that is no number is named."""
    if not path.is_file():
        raise ValueError(f"no file {path} to check")
    notes: dict[str, str] = {}
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        if line.startswith("#"):
            key, _, value = line[1:].partition(":")
            notes[key.strip()] = value.strip()
        elif line.strip():
            lines.append(line)
    reader = csv.DictReader(lines)
    columns = list(reader.fieldnames or [])
    if not columns or columns[0] != "method":
        raise ValueError(f"{path.name}: the header must start with `method`, then one name a column")
    items: dict[str, str] = {column: PUBLIC_ITEMS[column] for column in columns if column in PUBLIC_ITEMS}
    rows: dict[str, dict[str, str]] = {}
    for row in reader:
        name = row.pop("method")
        if None in row or None in row.values():
            raise ValueError(f"{path.name}: row {name!r} does not have the header's {len(columns)} cells")
        if name == "items":
            items = {column: text for column, text in row.items() if text.strip()}
            continue
        for column, text in row.items():
            _number(text, where=f"{path.name}: row {name!r}, column {column!r}")
        rows[name] = {column: text.strip() for column, text in row.items() if text.strip()}
    try:
        counts = {column: tuple(int(part) for part in text.split("|")) for column, text in items.items()}
        seeds = int(notes.get("seeds", "3").split()[0])
    except ValueError:
        raise ValueError(f"{path.name}: seeds and items must be whole numbers, alternatives joined by |") from None
    averaged = tuple(notes["average of"].split()) if "average of" in notes else None
    unknown = [column for column in averaged or () if column not in columns]
    if unknown:
        raise ValueError(f"{path.name}: `average of` names the column {unknown[0]!r}, which the table does not have")
    return PublishedTable(
        name=path.stem,
        source=notes.get("source", path.name),
        seeds=seeds,
        setting={key: notes[key] for key in SETTING if key in notes},
        average_of=averaged,
        items=counts,
        rows=rows,
    )


def check_published(table: PublishedTable) -> list[Finding]:
    """Every cell that no run of the stated kind can give, and every average that its row does not have."""
    findings: list[Finding] = []
    for method, row in table.rows.items():
        for column, printed in row.items():
            counts = table.items.get(column)
            if counts and not any(grim(printed, num_items=n, num_seeds=table.seeds) for n in counts):
                sizes = " or ".join(f"{n:,}" for n in counts)
                explanation = f"no mean of {table.seeds} seeds over {sizes} items scored 0/1 rounds to it"
                findings.append(Finding(method=method, column=column, printed=printed, explanation=explanation))
        for column in ("average", "avg"):
            if column in row:
                findings += _average(method, column, row, table.average_of)
    return findings


def _average(method: str, column: str, row: Mapping[str, str], names: tuple[str, ...] | None) -> list[Finding]:
    others = [text for name, text in row.items() if (name in names if names else name not in ("average", "avg"))]
    if not others or (names and len(others) < len(names)):
        return []
    mean = sum(map(Fraction, others), Fraction(0)) / len(others)
    # Each printed cell may be off by half its last digit, and so may the printed mean.
    slack = sum((_half_unit(text) for text in others), Fraction(0)) / len(others) + _half_unit(row[column])
    if abs(mean - Fraction(row[column])) <= slack:
        return []
    explanation = f"the mean of its {len(others)} cells is {float(mean):.3f}"
    return [Finding(method=method, column=column, printed=row[column], explanation=explanation)]


def _half_unit(text: str) -> Fraction:
    return Fraction(1, 2 * 10 ** len(text.partition(".")[2]))


def _number(text: str, *, where: str) -> None:
    try:
        Fraction(text.strip() or "0")
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{where}: {text!r} is not a number; write 67.3, without ± or %") from None
