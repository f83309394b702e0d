"""The report as one HTML file that needs no network: what the template, the style sheet and the script are given.

Everything that a model or a data set wrote is either escaped by the template or inside JSON whose ``<`` is escaped, or
inside base64: nothing of it can become markup.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

import agpo_bench
from agpo_bench import paths
from agpo_bench.data.benchmarks import task_names
from agpo_bench.evaluation.results import read_items
from agpo_bench.files import read_lines
from agpo_bench.reporting.collect import Collection, Evaluated
from agpo_bench.reporting.figure_data import Figure
from agpo_bench.reporting.svg import draw_svg, engineering, legend
from agpo_bench.reporting.tables import Table

MAX_PAGE_SAMPLES = 200_000
"""Samples that one page carries: about 15 MB. Of larger evaluations it holds the first items of every task."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One table or figure of the page."""

    anchor: str
    title: str
    caption: str
    warnings: tuple[str, ...] = ()
    table: Table | None = None
    figure: Figure | None = None
    is_against_paper: bool = False
    """Whether the table is ours minus a published one."""


def render_page(
    sections: Sequence[Section], collections: Sequence[Collection], *, not_printed: Mapping[str, str]
) -> str:
    """The whole page."""
    folder = paths.definitions("reports")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    sources = _Sources(collections)
    shown = [_shown(section, sources) for section in sections]
    chunks, told = _chunks(collections)
    runs = [run for collection in collections for run in collection.runs]
    results = [one.result for collection in collections for one in collection.evaluated.values()]
    return environment.get_template("page.html.j2").render(
        version=agpo_bench.__version__,
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),  # ours, not a model's
        script=Markup((folder / "page.js").read_text(encoding="utf-8")),
        facts=_facts(runs, results),
        sections=shown,
        chunks=chunks,
        browser=_json([{key: chunk[key] for key in ("id", "task", "title", "told")} for chunk in chunks]),
        has_all_items=told,
        provenance=_json(sources.as_json()),
        not_printed=sorted(not_printed.items()),
    )


def _json(content: object) -> Markup:
    """JSON that may stand inside a script element: no ``<``, so neither ``</script>`` nor ``<!--``."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _facts(runs: Sequence[Any], results: Sequence[Any]) -> list[tuple[str, str]]:
    def joined(values: set[str]) -> str:
        return ", ".join(sorted(values)) or "–"

    facts = [("Data", joined({result.data_source for result in results}))]
    if runs:
        facts += [
            ("Model", joined({run.model for run in runs})),
            ("Budget", joined({f"{engineering(run.budget)} generated tokens" for run in runs})),
            ("Runs", f"{len(runs)} of {len({run.method for run in runs})} methods"),
            ("Seeds", ", ".join(map(str, sorted({run.seed for run in runs})))),
        ]
    commits = {str(result.git_commit)[:12] for result in results if result.git_commit}
    return [*facts, ("Commit", joined(commits))]


def _shown(section: Section, sources: _Sources) -> dict[str, Any]:
    return {
        "anchor": section.anchor,
        "title": section.title,
        "caption": section.caption,
        "warnings": section.warnings,
        "table": None if section.table is None else _shown_table(section, section.table, sources),
        "figure": None if section.figure is None else _shown_figure(section.figure),
    }


def _shown_figure(figure: Figure) -> dict[str, Any]:
    panels = figure.panels
    return {
        "svgs": [Markup(svg) for svg in draw_svg(figure)],  # every text in it is escaped where it is built
        "legend": legend(figure),
        "is_heat": figure.heat is not None,
        "values": [
            (panel.label, one.label, f"{one.y[0]:.4g}", f"{one.y[-1]:.4g}", f"{one.y.min():.4g}", f"{one.y.max():.4g}")
            for panel in panels
            for one in panel.series
        ],
    }


def _shown_table(section: Section, table: Table, sources: _Sources) -> dict[str, Any]:
    groups = [(title, len(list(members))) for title, members in groupby(table.columns, key=lambda c: c.group)]
    rows = []
    for r, row in enumerate(table.rows):
        cells = []
        for c, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
            identity = f"{section.anchor}.{r}.{c}"
            sources.add(identity, f"{row.title}, {column.own_title}", cell, row)
            cells.append(
                {
                    "id": identity,
                    "text": cell.printed_mean(),
                    "spread": cell.printed_spread(),
                    "marks": cell.printed_marks(),
                    "mark": cell.mark,
                    "sort": "" if cell.mean is None else repr(float(cell.mean)),
                    "label": f"{row.title}, {column.own_title}: {cell.printed()}. Where it comes from",
                }
            )
        rows.append({"title": row.title, "cells": cells})
    return {
        "groups": groups if any(title for title, _ in groups) else [],
        "columns": [column.title for column in table.columns],
        "rows": rows,
    }


class _Sources:
    """Files behind the cells, each described once."""

    def __init__(self, collections: Sequence[Collection]) -> None:
        self._root = collections[0].root
        self._cells: dict[str, dict[str, Any]] = {}
        self._files: dict[Path, int] = {}
        self._told: list[dict[str, Any]] = []
        self._texts: dict[str, int] = {}
        self._results = {one.file: one for found in collections for one in found.evaluated.values()}
        self._runs = {run.directory: run for found in collections for run in found.runs}

    def add(self, identity: str, label: str, cell: Any, row: Any) -> None:
        """Remember one cell."""
        self._cells[identity] = {
            "label": label,
            "printed": cell.printed(),
            "mean": None if cell.mean is None else float(cell.mean),
            "per_seed": [float(value) for value in cell.per_seed],
            "minus": [float(value) for value in cell.baseline.per_seed] if cell.baseline else [],
            "interval": list(cell.interval) if cell.interval and not cell.baseline else [],
            "p": cell.p_value,
            "seeds": list(row.seeds),
            "note": cell.note or cell.doubt,
            "files": [self._file(file) for file in dict.fromkeys(cell.all_files)],
        }

    def as_json(self) -> dict[str, Any]:
        """What the drawer reads."""
        return {"cells": self._cells, "files": self._told, "texts": list(self._texts)}

    def _file(self, file: Path) -> int:
        if file not in self._files:
            self._files[file] = len(self._told)
            self._told.append(self._describe(file))
        return self._files[file]

    def _describe(self, file: Path) -> dict[str, Any]:
        told: dict[str, Any] = {"path": file.relative_to(self._root).as_posix(), "facts": [], "texts": []}
        one = self._results.get(file)
        if one is not None:
            told["facts"] += _result_facts(one)
        run = next((self._runs[parent] for parent in file.parents if parent in self._runs), None)
        if run is not None:
            phases = ", ".join(
                f"{name} {int(tokens):,}" for name, tokens in run.ledger.get("phases", {}).items() if tokens
            )
            told["facts"].append(
                ("Tokens", f"{run.tokens_used:,} of {run.budget:,}" + (f" ({phases})" if phases else ""))
            )
            for name in ("git_commit", "config_sha256", "recipe_sha256"):
                if run.provenance.get(name):
                    told["facts"].append((name, str(run.provenance[name])))
            host = run.provenance.get("host", {})
            if host:
                told["facts"].append(("Host", ", ".join(f"{key} {value}" for key, value in host.items())))
            told["texts"] = [
                ["Config", self._text(yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True))],
                ["Recipe", self._text(yaml.safe_dump(dict(run.recipe), sort_keys=False, allow_unicode=True))],
            ]
        return told

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))


def _result_facts(one: Evaluated) -> list[tuple[str, str]]:
    r = one.result
    parsed = "–" if r.parse_rate is None else f"{100 * r.parse_rate:.1f} %"
    return [
        ("Method", r.title_method + ("" if r.seed is None else f", seed {r.seed}")),
        (
            "Task",
            f"{r.title}, {r.split}, version {r.task_version}, protocol {r.protocol_version}, grading {r.grading_mode}",
        ),
        ("Data", f"{r.data_source} (SHA-256 {r.data_checksum[:16]}…)"),
        ("Score", f"{r.score_sum:g} of {r.num_items - r.error_count:,} items"),
        ("Read", f"{parsed} with an answer, {100 * r.truncation_rate:.1f} % cut, {r.error_count} failed"),
        ("Recomputed", "from samples.jsonl" if one.scores is not None else "no samples beside it"),
        ("Model", f"{r.model} (SHA-256 {r.model_fingerprint[:16]}…)"),
        ("Commit", r.git_commit or "–"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in r.versions.items())),
    ]


def _chunks(collections: Sequence[Collection]) -> tuple[list[dict[str, Any]], bool]:
    """Items and samples a task, compressed; and whether that is all of them."""
    chunks = []
    groups = [
        (collection, task, found)
        for collection in collections
        for task in task_names()
        if (found := _with_samples(collection, task))
    ]
    total = sum(one.result.num_items * (1 + one.result.num_draws) for _, _, found in groups for one in found)
    share = min(1.0, MAX_PAGE_SAMPLES / total) if total else 1.0
    for number, (collection, task, found) in enumerate(groups):
        size = max(one.result.num_items for one in found)
        limit = size if share == 1.0 else max(1, int(size * share))
        content = _chunk(collection, found, limit)
        packed = gzip.compress(json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode(), 6, mtime=0)
        title = found[0].result.title + (f" ({collection.model})" if len(collections) > 1 else "")
        told = f"{len(content['items']):,} of {size:,} items" if limit < size else f"{size:,} items"
        chunks.append(
            {
                "id": f"chunk-{number}",
                "task": task,
                "title": title,
                "told": told,
                "data": base64.b64encode(packed).decode(),
            }
        )
    return chunks, share == 1.0


def _with_samples(collection: Collection, task: str) -> list[Evaluated]:
    order = {paths.INITIAL_MODEL: 0}
    found = sorted(
        ((order.get(m, 1), m, s or 0, one) for (m, s, t), one in collection.evaluated.items() if t == task),
        key=lambda entry: entry[:3],
    )
    return [one for *_, one in found if one.scores is not None]


def _chunk(collection: Collection, found: Sequence[Evaluated], limit: int) -> dict[str, Any]:
    asked: dict[int, tuple[str, str]] = {}
    for one in found:
        file = one.file.with_name(paths.ITEMS_FILE)
        if file.is_file():
            asked = {item.doc_id: (item.prompt, item.gold) for item in read_items(file)}
            break
    models, ids = [], {}
    for one in found:
        by_item: dict[int, list[list[Any]]] = {}
        for line in read_lines(one.samples_file):
            if line["doc_id"] not in by_item and len(by_item) == limit:
                break
            ids[line["doc_id"]] = line["prompt_id"]
            flags = line["is_error"] | line["is_truncated"] << 1 | line["is_leaked"] << 2
            by_item.setdefault(line["doc_id"], []).append(
                [line["text"], line["answer"], line["score"], line["reason"], flags, line["num_tokens"]]
            )
        title = collection.title(one.result.method) if one.result.seed is not None else one.result.title_method
        models.append({"method": one.result.method, "title": title, "seed": one.result.seed, "draws": by_item})
    return {"items": [[i, ids[i], *asked.get(i, ("(the question was not kept)", ""))] for i in ids], "models": models}
