"""The data behind the tables and figures, one value a line, as CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from agpo_bench.files import write_whole
from agpo_bench.reporting.collect import Collection, Evaluated
from agpo_bench.reporting.figure_data import Figure
from agpo_bench.reporting.tables import Table


def scores(collections: Sequence[Collection]) -> pd.DataFrame:
    """One line a model, seed, task and measure; shares in [0, 1]. ``problem`` says why a value is no final number."""
    lines = []
    for collection in collections:
        for (method, seed, task), one in sorted(collection.evaluated.items(), key=lambda item: str(item[0])):
            r = one.result
            told = {
                "model": collection.model,
                "method": method,
                "seed": seed,
                "task": task,
                "num_items": r.num_items,
                "num_draws": r.num_draws,
                "tokens_used": r.tokens_used,
                "budget": r.budget,
                "data_source": r.data_source,
                "data_checksum": r.data_checksum,
                "git_commit": r.git_commit,
                "file": os.path.relpath(one.file, collection.root),
                "problem": one.problem,
            }
            lines += [{**told, "measure": name, "k": k, "value": value} for name, k, value in _measures(one)]
    frame = pd.DataFrame(lines)
    return frame.astype({"seed": "Int64", "k": "Int64", "budget": "Int64"})


def _measures(one: Evaluated) -> Iterable[tuple[str, int | None, float | None]]:
    r = one.result
    yield "accuracy", None, r.accuracy
    yield "parse_rate", None, r.parse_rate
    yield "truncation_rate", None, r.truncation_rate
    if r.avg_sampled is not None:
        yield "avg", r.num_draws, r.avg_sampled
    for k, value in r.maj.items():
        yield "maj", k, value
    for k, value in r.pass_at.items():
        yield "pass", k, value


def curves(figures: Sequence[Figure]) -> pd.DataFrame:
    """One line a point of every line, or a cell of a heat map (``x`` is then its row)."""
    lines: list[dict[str, object]] = []
    for figure in figures:
        for panel in figure.panels:
            for one in panel.series:
                lines += [
                    {"figure": figure.name, "panel": panel.label, "line": one.label, "x": float(x), "y": float(y)}
                    | {"std": float(d) if one.num_seeds > 1 else None, "num_seeds": one.num_seeds}
                    for x, y, d in zip(one.x, one.y, one.deviation, strict=True)
                ]
        if figure.heat is not None:
            for r, row in enumerate(figure.heat.row_labels):
                lines += [
                    {"figure": figure.name, "panel": row, "line": label, "x": float(r), "y": float(value)}
                    | {"std": None, "num_seeds": None}
                    for label, value in zip(figure.heat.column_labels, figure.heat.values[r], strict=True)
                ]
    columns = ["figure", "panel", "line", "x", "y", "std", "num_seeds"]
    return pd.DataFrame(lines, columns=columns).astype({"std": "Float64", "num_seeds": "Int64"})


def write_tables(out: Path, **frames: pd.DataFrame) -> list[Path]:
    """Each frame as ``<name>.csv`` and ``<name>.parquet``."""
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, frame in frames.items():
        csv_file, parquet = out / f"{name}.csv", out / f"{name}.parquet"
        write_whole(csv_file, frame.to_csv(index=False, lineterminator="\n"))
        temporary = parquet.with_name(f".{parquet.name}.{os.getpid()}.tmp")
        frame.to_parquet(temporary, index=False)
        temporary.replace(parquet)
        files += [csv_file, parquet]
    return files


def trace(tables: Sequence[Table], root: Path) -> str:
    """CSV: table, row, column, what is printed, exact mean, per-seed values, p-value, files."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["table", "method", "minus", "seeds", "column", "printed", "mean", "per_seed", "p_value", "files", "note"]
    )
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                writer.writerow(
                    [
                        table.name,
                        row.method,
                        row.minus or "",
                        " ".join(map(str, row.seeds)),
                        column.full_title,
                        cell.printed(),
                        "" if cell.mean is None else repr(float(cell.mean)),
                        json.dumps([float(value) for value in cell.per_seed]),
                        "" if cell.p_value is None else repr(cell.p_value),
                        " ".join(os.path.relpath(path, root) for path in cell.all_files),
                        cell.note or cell.doubt,
                    ]
                )
    return buffer.getvalue()
